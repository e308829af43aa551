package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/cli/launch/child"
	"github.com/pannier/pannier/host/internal/system/envoyadmin"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/envoy"
	"github.com/pannier/pannier/test/lib/testhost"
)

// takeover is an Envoy that takes over from itself, under requests.
type takeover struct {
	file, listen, admin string
	s                   *Sidecars
	n                   *notes
	load                *envoy.Load
}

// A listener without a cluster is refused, and one that waits for Consul is not ready.
const (
	refused = `"listeners": [{"name": "none"}]`
	waits   = `"clusters": [{"name": "consul", "connect_timeout": "1s", "typed_extension_protocol_options": {
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
      "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
      "explicit_http_config": {"http2_protocol_options": {}}}}}]}, "dynamic_resources": {
    "cds_config": {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"},
    "ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3",
      "grpc_services": [{"envoy_grpc": {"cluster_name": "consul"}}]}`
)

func startTakeover(t *testing.T) *takeover {
	t.Helper()
	program := envoy.Program(t, "takeovers of a proxy")
	dir := t.TempDir()
	c := &takeover{
		file: filepath.Join(dir, "bootstrap"), admin: filepath.Join(dir, "admin.sock"),
		listen: testhost.FreeAddress(t, "127.0.0.1"),
	}
	_, c.s, c.n = beside(t, child.Plan{Command: "true"})
	c.s.timing.watch = 50 * time.Millisecond
	c.serve(t, "first")
	check.NoError(t, c.s.Start(t.Context(), Sidecar{
		Name: "envoy", File: c.file, Plan: func(baseID, epoch int) child.Plan {
			return child.Plan{Command: program, Env: os.Environ(), Args: []string{
				"-c", c.file, "--base-id", strconv.Itoa(baseID), "--restart-epoch", strconv.Itoa(epoch),
				"--concurrency", "1", "--log-level", "error",
			}}
		},
	}))
	check.NoError(t, c.s.AwaitReady(t.Context()))
	first := c.running()[0]
	if !serves(t.Context(), envoyadmin.New("unix", c.admin, adminTimeout), first.baseID, 0) {
		t.Error("it does not serve when it is ready")
	}
	c.load = envoy.StartLoad("tcp", c.listen, 500)
	t.Cleanup(c.load.End)
	c.answered(t, "first")
	return c
}

// write replaces the bootstrap as the host does.
func (c *takeover) write(t *testing.T, resources string) {
	t.Helper()
	text := fmt.Sprintf(`{"node": {"id": "web", "cluster": "web"}, "admin": {"address": {"pipe": {"path": %q}}},
  "static_resources": {%s}}`, c.admin, resources)
	check.NoError(t, os.WriteFile(c.file+".new", []byte(text), 0o400))
	check.NoError(t, os.Rename(c.file+".new", c.file))
}

func (c *takeover) serve(t *testing.T, text string) {
	t.Helper()
	c.write(t, `"listeners": [`+envoy.Static(c.listen, text)+`]`)
}

// answered waits until a request got an answer.
func (c *takeover) answered(t *testing.T, want string) {
	t.Helper()
	check.Eventually(t, "the answer "+want, func() bool { return c.load.Answers()[want] > 0 })
}

func (c *takeover) noted(t *testing.T, want string) {
	t.Helper()
	check.Eventually(t, "the note "+want, func() bool { return c.n.count(want) > 0 })
}

func (c *takeover) running() (all []*proxy) {
	one := c.s.all[0]
	one.mu.Lock()
	defer one.mu.Unlock()
	return append(all, one.running...)
}

// fails ends the requests, of which no more than so many may have failed.
func (c *takeover) fails(t *testing.T, most int) {
	t.Helper()
	c.load.End()
	if failed := c.load.Failed(); len(failed) > most {
		t.Errorf("%d requests failed, the first by %v; answers %v; notes %q", len(failed), failed[0], c.load.Answers(),
			c.n.all())
	}
}

// inHand is how many requests may fail, of 500 a second, when an Envoy is ended without one that takes over from it: it
// resets the connections that wait for it.
const inHand = 500

// Three takeovers, each long before the one before has ended by itself, fail no request: none is killed. A stop ends
// all that run, and their shared memory goes with them.
func TestTakeoversFailNoRequest(t *testing.T) {
	c := startTakeover(t)
	first := c.running()[0]
	for n, text := range []string{"second", "third", "fourth"} {
		c.serve(t, text)
		check.Eventually(t, "a takeover", func() bool { return c.n.count("has taken over") == n+1 && len(c.running()) == 2 })
	}
	c.answered(t, "fourth")
	c.fails(t, 0)
	last := c.running()[1]
	if last.baseID != first.baseID || last.epoch != 3 || running(first.PID()) || len(c.n.all()) != 3 {
		t.Errorf("the last one is %+v; notes %q", last, c.n.all())
	}
	check.Must(os.Stat(sharedMemory(first.baseID)))(t)
	c.s.Stop(t.Context(), time.Minute)
	if _, err := os.Stat(sharedMemory(first.baseID)); !os.IsNotExist(err) || running(last.PID()) {
		t.Errorf("it still runs, or its shared memory is there: %v", err)
	}
}

// One that does not come to serve is given up: the one before stays. Envoy lets no other take over from that, so the
// next one is started beside it.
func TestTakeoverThatFails(t *testing.T) {
	for name, bad := range map[string]struct{ resources, note string }{
		"refused":   {refused, "the next one ended with exit code 1"},
		"not ready": {waits, "the next one is not ready after"},
	} {
		t.Run(name, func(t *testing.T) {
			c := startTakeover(t)
			first := c.running()[0]
			c.s.timing.ready = 3 * time.Second
			c.write(t, bad.resources)
			check.Eventually(t, "two that fail", func() bool { return c.n.count(bad.note) == 2 })
			if failed := c.load.Failed(); len(failed) > 0 || !running(first.PID()) {
				t.Errorf("the first one has ended, or %d requests failed: %v", len(failed), failed)
			}
			c.serve(t, "second")
			c.answered(t, "second")
			check.Eventually(t, "the end of the first one", func() bool { return c.running()[0] != first })
			c.fails(t, inHand)
			if _, err := os.Stat(sharedMemory(first.baseID)); !os.IsNotExist(err) {
				t.Errorf("the shared memory of the first one: %v", err)
			}
		})
	}
}

// One that another has taken over from ends by itself, for which that one would give up: a new one is started beside it
// before.
func TestTakeoverWhoseFirstOneIsKilled(t *testing.T) {
	c := startTakeover(t)
	first := c.running()[0]
	c.serve(t, "second")
	c.answered(t, "second")
	c.noted(t, "has taken over")
	second := c.running()[1]
	c.load.End()
	check.NoError(t, unix.Kill(first.PID(), unix.SIGKILL))
	c.load = envoy.StartLoad("tcp", c.listen, 500)
	t.Cleanup(c.load.End)
	check.Eventually(t, "the end of both", func() bool { return !running(first.PID()) && !running(second.PID()) })
	c.serve(t, "third")
	c.answered(t, "third")
	c.fails(t, inHand)
}

// One that is killed is started again, with nothing of the ones before.
func TestTakeoverBeginsAgain(t *testing.T) {
	c := startTakeover(t)
	c.serve(t, "second")
	c.answered(t, "second")
	c.noted(t, "has taken over")
	c.load.End()
	both := c.running()
	check.NoError(t, unix.Kill(both[1].PID(), unix.SIGKILL))
	check.Eventually(t, "another one that serves", func() bool {
		all := c.running()
		return len(all) == 1 && all[0].epoch == 0 && serves(t.Context(), envoyadmin.New("unix", c.admin, adminTimeout), all[0].baseID, 0)
	})
	if running(both[0].PID()) || c.running()[0].baseID == both[0].baseID {
		t.Errorf("one that nothing ends still runs; notes %q", c.n.all())
	}
}

// A base ID is not free if a file of its shared memory was left, or while an Envoy without one has it.
func TestFreeBaseID(t *testing.T) {
	c := startTakeover(t)
	id := c.running()[0].baseID
	if isFree(id) {
		t.Errorf("%d is free, with an Envoy", id)
	}
	check.NoError(t, os.Remove(sharedMemory(id)))
	if isFree(id) {
		t.Errorf("%d is free, with an Envoy whose file is gone", id)
	}
	left := freeBaseID()
	check.NoError(t, os.WriteFile(sharedMemory(left), nil, 0o600))
	if isFree(left) {
		t.Errorf("%d is free, with a file", left)
	}
	check.NoError(t, os.Remove(sharedMemory(left)))
	if !isFree(left) || strings.Contains(sharedMemory(left), "-") {
		t.Errorf("%d is not free, with nothing", left)
	}
}

// A program waits for its proxy no longer than it is told to.
func TestAProxyIsNotReady(t *testing.T) {
	c := startTakeover(t)
	c.write(t, waits)
	for _, p := range c.running() {
		check.NoError(t, p.Signal(unix.SIGKILL))
	}
	c.noted(t, "is started again")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := c.s.AwaitReady(ctx); err == nil || !strings.Contains(err.Error(), `sidecar "envoy" is not ready`) {
		t.Errorf("an Envoy that waits for Consul: %v", err)
	}
}

// What a program has sent before its end reaches its caller: the proxy ends after that. An idle connection of HTTP does
// not keep it.
func TestAProxySendsAllBeforeItEnds(t *testing.T) {
	c := startTakeover(t)
	c.load.End()
	program, err := net.Listen("tcp", "127.0.0.1:0")
	check.NoError(t, err)
	t.Cleanup(func() { _ = program.Close() })
	host, port, _ := strings.Cut(program.Addr().String(), ":")
	at := testhost.FreeAddress(t, "127.0.0.1")
	_, listen, _ := strings.Cut(at, ":")
	socket := func(port string) string {
		return fmt.Sprintf(`{"socket_address": {"address": %q, "port_value": %s}}`, host, port)
	}
	c.write(t, `"listeners": [`+envoy.Static(c.listen, "second")+`, {"name": "tcp", "address": `+socket(listen)+`,
  "per_connection_buffer_limit_bytes": 65536, "socket_options": [{"level": 1, "name": 7, "int_value": 65536}],
  "filter_chains": [{"filters": [{"name": "tcp", "typed_config": {"stat_prefix": "tcp", "cluster": "program",
    "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"}}]}]}],
"clusters": [{"name": "program", "connect_timeout": "5s", "load_assignment": {"cluster_name": "program", "endpoints": [
  {"lb_endpoints": [{"endpoint": {"address": `+socket(port)+`}}]}]}}]`)
	c.noted(t, "has taken over")
	idle := http.Client{Transport: &http.Transport{}}
	resp := check.Must(idle.Get("http://" + c.listen))(t)
	check.Must(io.Copy(io.Discard, resp.Body))(t)
	check.NoError(t, resp.Body.Close())

	const size = 40 << 20
	sent := make(chan error, 1)
	go func() {
		conn, err := program.Accept()
		if err == nil {
			_, err = conn.Write(make([]byte, size))
			err = errors.Join(err, conn.Close())
		}
		sent <- err
	}()
	caller := check.Must(net.Dial("tcp", at))(t)
	check.NoError(t, caller.(*net.TCPConn).SetReadBuffer(64<<10))
	const rest = 2 << 20 // the way to the proxy has room for it, and what is behind it has not (SO_SNDBUF)
	check.Must(io.CopyN(io.Discard, caller, size-rest))(t)
	check.NoError(t, <-sent)
	c.s.timing.drain = time.Hour
	stopped := make(chan struct{})
	go func() { c.s.Stop(t.Context(), time.Minute); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(300 * time.Millisecond): // it waits for the caller
	}
	if got, err := io.Copy(io.Discard, caller); err != nil || got != rest {
		t.Errorf("%d of the last %d bytes have arrived: %v", got, rest, err)
	}
	check.NoError(t, caller.Close())
	check.Eventually(t, "the proxy has ended", func() bool {
		select {
		case <-stopped:
			return true
		default:
			return false
		}
	})
}

// A program waits a bounded time for its Envoy, and learns which one is not ready.
func TestAwaitReadyIsBounded(t *testing.T) {
	dir := t.TempDir()
	c := &takeover{file: filepath.Join(dir, "bootstrap"), admin: filepath.Join(dir, "admin.sock")}
	_, s, _ := beside(t, child.Plan{Command: "true"})
	c.write(t, `"listeners": []`)
	check.NoError(t, s.Start(t.Context(), Sidecar{
		Name: "envoy", File: c.file, Plan: func(baseID, epoch int) child.Plan {
			return child.Plan{Command: "sleep", Args: []string{"60", strconv.Itoa(baseID), strconv.Itoa(epoch)}, Env: os.Environ()}
		},
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := s.AwaitReady(ctx); err == nil || !strings.Contains(err.Error(), `sidecar "envoy" is not ready`) {
		t.Errorf("%v", err)
	}
}

// Envoy has room for three of a chain: a takeover waits while the first of them still ends.
func TestATakeoverWaitsForRoom(t *testing.T) {
	c := startTakeover(t)
	first := c.running()[0]
	replaced := func(times int) {
		t.Helper()
		check.Eventually(t, "a takeover", func() bool { return c.n.count("has taken over") == times })
	}
	c.serve(t, "second")
	replaced(1)
	check.Stop(t, first.PID())
	c.serve(t, "third")
	replaced(2)
	c.serve(t, "fourth")
	time.Sleep(20 * c.s.timing.watch)
	if c.n.count("has taken over") != 2 || c.n.count("cannot be replaced") != 0 {
		t.Errorf("notes %q", c.n.all())
	}
	check.NoError(t, first.Signal(unix.SIGCONT))
	replaced(3)
	c.answered(t, "fourth")
	c.fails(t, 0)
}
