package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/host/internal/consul/ports"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/test/lib/check"
)

// serviceEvents returns the types of the services' events.
func (h *host) serviceEvents() (all []string) {
	for _, e := range h.bus.Recent(1000) {
		if e.Topic == events.TopicService {
			all = append(all, e.Type)
		}
	}
	return all
}

// A token is replaced before it expires. Users of the old one may use it until it expires; then it is forgotten.
func TestATokenIsRenewed(t *testing.T) {
	h := newHost(t)
	h.services.Limits.Look, h.consul.life = 20*time.Millisecond, 600*time.Millisecond
	began := time.Now()
	first := h.start(t, withServices(spec("w"), sidecar("web"))).Services[0]
	if first.ExpiresAt.IsZero() {
		t.Fatalf("it does not expire: %+v", first)
	}
	second := h.eventually(t, "w", "renewed",
		func(w Workload) bool { return w.Services[0].Accessor != first.Accessor }).Services[0]
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("it was renewed after %s already", took)
	}
	h.consul.mu.Lock()
	_, stands := h.consul.state.Tokens[first.Accessor]
	h.consul.mu.Unlock()
	if late := time.Now().After(first.ExpiresAt); !stands && !late {
		t.Error("the one before was revoked at once")
	}
	h.eventuallyDid(t, "revoke web", 1)
	if now := time.Now(); now.Before(first.ExpiresAt) {
		t.Errorf("it was revoked %s before it expired", first.ExpiresAt.Sub(now))
	}
	if !slices.Contains(h.serviceEvents(), "identity-replaced") {
		t.Errorf("nobody was told: %v", h.serviceEvents())
	}
	if second.Message != "" {
		t.Errorf("it is not well: %s", second.Message)
	}
	h.stop(t, "w")
	h.clean(t) // logged out, all of them
}

// A renewal that is due before the next check does not wait for it.
func TestRenewalDoesNotWaitForTheNextCheck(t *testing.T) {
	h := newHost(t)
	h.consul.life = 300 * time.Millisecond
	first := h.start(t, withServices(spec("w"), sidecar("web"))).Services[0]
	h.eventually(t, "w", "renewed", func(w Workload) bool { return w.Services[0].Accessor != first.Accessor })
	h.stop(t, "w")
	h.clean(t)
}

// A failure is reported once, the workload runs on, and everything is repaired when Consul is back.
func TestARenewalThatFails(t *testing.T) {
	for _, call := range []string{"intend", "derive", "read", "bootstrap"} {
		t.Run(call, func(t *testing.T) {
			h := newHost(t)
			h.services.Limits.Look, h.services.Limits.ReadBack, h.services.Limits.Bootstrap = 5*time.Millisecond,
				300*time.Millisecond, 300*time.Millisecond
			h.services.Limits.Identity = 500 * time.Millisecond
			before := h.start(t, withServices(spec("w"), sidecar("web"))).Services[0]
			back := make(chan struct{})
			h.on(call+":before", 0, func(ctx context.Context) error {
				select {
				case <-back:
					return nil
				default:
					return fail(codes.Unavailable)(ctx)
				}
			})
			check.NoError(t, h.consul.forget())
			w := h.eventually(t, "w", "failing", func(w Workload) bool { return w.Services[0].Message != "" })
			if w.State != Running || !strings.Contains(w.Services[0].Message, "the test wants it so") {
				t.Errorf("it is %s: %s", w.State, w.Services[0].Message)
			}
			close(back)
			after := h.eventuallyWell(t, "w")
			if after.Accessor == before.Accessor && call != "read" { // one that Consul has forgotten
				t.Error("it has the same token")
			}
			h.eventually(t, "w", "told of",
				func(Workload) bool { return slices.Contains(h.serviceEvents(), "identity-restored") })
			if n := h.countEvents("identity-failed"); n == 0 || n > 3 {
				t.Errorf("it was told %d times", n)
			}
			h.stop(t, "w")
			h.clean(t)
		})
	}
}

func (h *host) countEvents(kind string) (n int) {
	for _, e := range h.serviceEvents() {
		if e == kind {
			n++
		}
	}
	return n
}

// A host that ends during a replacement continues it, or continues with the old token.
func TestTheHostEndsInTheMiddleOfAReplacement(t *testing.T) {
	for _, label := range []string{
		"intend:before", "intend:after", "derive:before", "derive:after", "bootstrap:before",
		"revoke:before", "revoke:after",
	} {
		t.Run(label, func(t *testing.T) {
			h := newHost(t)
			h.services.Limits.Look, h.services.Limits.ReadBack = 5*time.Millisecond, 300*time.Millisecond
			h.start(t, withServices(spec("w"), sidecar("web")))
			held := newGate()
			h.forget()
			h.on(label, 1, held.hold)
			check.NoError(t, h.consul.forget())
			held.await(t)
			h = h.next(t)
			h.services.Limits.ReadBack = 300 * time.Millisecond
			h.open(t)
			h.eventuallyWell(t, "w")
			h.stop(t, "w")
			h.clean(t)
		})
	}
}

// A stop during a replacement leaves neither token.
func TestAStopInTheMiddleOfAReplacement(t *testing.T) {
	for _, label := range []string{
		"intend:after", "derive:before", "derive:after", "read:before", "bootstrap:before",
		"revoke:before",
	} {
		t.Run(label, func(t *testing.T) {
			h := newHost(t)
			h.services.Limits.Look, h.services.Limits.ReadBack = 5*time.Millisecond, 300*time.Millisecond
			h.start(t, withServices(spec("w"), sidecar("web")))
			held := newGate()
			h.forget()
			check.NoError(t, h.consul.forget())
			h.on(label, 1, held.hold)
			held.await(t)
			h.stop(t, "w")
			h.clean(t)
		})
	}
}

// A token file that its user has tampered with is written again, and never through a link.
func TestTokenFileIsRepaired(t *testing.T) {
	h := newHost(t)
	h.services.Limits.Look = 5 * time.Millisecond
	s := h.start(t, withServices(spec("w"), sidecar("web"))).Services[0]
	victim := h.dir + "/victim"
	check.NoError(t, os.WriteFile(victim, []byte("precious"), 0o400))
	check.NoError(t, link(s.TokenFile, victim))
	h.eventuallyWell(t, "w")
	check.NoError(t, os.Remove(s.BootstrapFile))
	h.eventuallyWell(t, "w")
	if got, err := os.ReadFile(victim); err != nil || string(got) != "precious" {
		t.Errorf("what the link led to is %q, %v", got, err)
	}
	check.NoError(t, link(s.TokenFile, victim))
	h.stop(t, "w") // a token that was minted needs no secret to be revoked
	h.clean(t)
}

// A token that cannot be written for lack of space waits for space, and is not requested again and again.
func TestRenewalOnAFullDisk(t *testing.T) {
	h := newHost(t)
	h.services.Limits.Look, h.services.Limits.ReadBack, h.consul.life = time.Millisecond, 300*time.Millisecond, time.Hour
	dir := filepath.Join(h.dir, "secrets")
	check.NoError(t, os.Mkdir(dir, 0o700))
	check.NoError(t, unix.Mount("small", dir, "tmpfs", 0, "size=64k"))
	h.start(t, withServices(spec("w"), sidecar("web")))
	filler := filepath.Join(dir, "default", "w", "web", "filler")
	_ = os.WriteFile(filler, make([]byte, 2<<20), 0o600)
	check.NoError(t, h.consul.forget())
	w := h.eventually(t, "w", "failing",
		func(w Workload) bool { return strings.Contains(w.Services[0].Message, secretsdir.ErrFull.Error()) })
	if w.State != Running {
		t.Errorf("it is %s", w.State)
	}
	for late := time.Now().Add(50 * time.Millisecond); time.Now().Before(late); time.Sleep(time.Millisecond) {
		if n := h.count("derive web"); n != 2 {
			t.Fatalf("%d tokens were derived", n)
		}
	}
	check.NoError(t, os.Remove(filler))
	h.eventually(t, "w", "well", func(w Workload) bool {
		secret, _ := os.ReadFile(w.Services[0].TokenFile)
		return w.Services[0].Message == "" && string(secret) == h.consul.tokens()[0].Secret
	})
	h.stop(t, "w")
	h.clean(t)
}

func TestBeats(t *testing.T) {
	h, p := newHost(t), runScript(t, false, idle)
	s := withServices(spec("w"), sidecar("web"), plainService("db"))
	s.Services[0].Checks = append(s.Services[0].Checks, processCheck)
	h.start(t, s)
	beats := h.Registered.Beats()["default"]
	if len(beats) != 1 || beats[0].ID != "pannier:here:default:w:web" || beats[0].Healthy ||
		!strings.Contains(beats[0].Output, "no process") {
		t.Errorf("before its process is known: %+v", beats)
	}
	told := h.consul.changed()
	check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
	if h.consul.changed() == told {
		t.Error("nobody was told of the process")
	}
	if beats = h.Registered.Beats()["default"]; len(beats) != 1 || !beats[0].Healthy {
		t.Errorf("while it lives: %+v", beats)
	}
	h = h.restart(t)
	if beats = h.Registered.Beats()["default"]; len(beats) != 1 || !beats[0].Healthy {
		t.Errorf("after a restart: %+v", beats)
	}
	held := newGate()
	h.on("end:before", 1, held.hold)
	p.kill(t)
	held.await(t)
	if n := len(h.Registered.Instances()) + len(h.Registered.Beats()); n > 0 {
		t.Errorf("on its way down it has %d", n)
	}
	close(held.open)
	h.ended(t, "w")
	h.clean(t)
}

// A stop cancels a running check of a token, and undoes nothing before that has ended.
func TestStopDuringACheck(t *testing.T) {
	h := newHost(t)
	h.services.Limits.Look = time.Millisecond
	looking := newGate()
	h.start(t, withServices(spec("w"), sidecar("web")))
	h.on("read:before", 1, func(ctx context.Context) error {
		err := looking.hold(ctx)
		for late := time.Now().Add(50 * time.Millisecond); time.Now().Before(late); time.Sleep(time.Millisecond) {
			if h.count("end w") > 0 {
				t.Error("it is undone while it is looked after")
				break
			}
		}
		return err
	})
	looking.await(t)
	h.stop(t, "w")
	h.clean(t)
}

// Consul is asked about the token of a service at once, not only when the host looks.
func TestInspectTokens(t *testing.T) {
	h := newHost(t)
	h.services.Limits.Look = time.Hour
	h.start(t, withServices(spec("w"), sidecar("web")))
	h.start(t, spec("plain"))
	is := func(want servicesteps.TokenState, why string) {
		t.Helper()
		found, err := h.InspectTokens(t.Context(), ref("w"))
		check.NoError(t, err)
		if len(found) != 1 || found[0].State != want || found[0].Token.Service != "web" || found[0].Token.Accessor == "" ||
			(why == "") != (found[0].Err == nil) || (why != "" && !strings.Contains(found[0].Err.Error(), why)) {
			t.Errorf("it is %+v, want %s: %s", found, want, why)
		}
	}
	is(servicesteps.TokenValid, "")
	check.NoError(t, h.consul.forget())
	is(servicesteps.TokenGone, "")
	h.on("read:before", 0, fail(codes.Unavailable))
	is(servicesteps.TokenUnknown, "the test wants it so")

	if found, err := h.InspectTokens(t.Context(), ref("plain")); err != nil || len(found) > 0 {
		t.Errorf("a workload without services has %+v, %v", found, err)
	}
	if _, err := h.InspectTokens(t.Context(), ref("nope")); !errors.Is(err, ErrNotFound) {
		t.Errorf("of no workload: %v", err)
	}
}

// A proxy that is away is reported, with an event, and reported as back. One that nobody runs here may be none with a
// readiness endpoint: it is missed only once it was there.
func TestAProxyThatIsNotReady(t *testing.T) {
	for name, c := range map[string]struct {
		sidecars []specs.Sidecar
		missed   bool
	}{
		"its Envoy is the spec's": {[]specs.Sidecar{{Command: []string{"envoy", "-c", "${bootstrap}"}}}, true},
		"it may be any":           {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.services.Limits.Ready = 50 * time.Millisecond
			s := withServices(spec("w"), sidecar("web"))
			s.Sidecars = c.sidecars
			w := h.start(t, s)
			missing := func(w Workload) bool {
				return strings.Contains(w.Services[0].Message, "the proxy has not been ready since")
			}
			if c.missed {
				h.eventually(t, "w", "reported", missing)
			}
			health := make(chan int, 1)
			health <- http.StatusOK
			listener := check.Must(net.Listen("unix", w.Services[0].ReadySocket))(t)
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				code := <-health
				health <- code
				w.WriteHeader(code)
			})}
			var serving sync.WaitGroup
			serving.Go(func() { _ = server.Serve(listener) })
			h.eventuallyWell(t, "w")
			time.Sleep(2 * h.services.Limits.Ready) // it is seen
			<-health
			health <- http.StatusServiceUnavailable
			if w := h.eventually(t, "w", "reported", missing); !strings.Contains(w.Services[0].Message, "503") {
				t.Errorf("the message is %q", w.Services[0].Message)
			}
			check.NoError(t, server.Close())
			serving.Wait()
			if n := h.countEvents("proxy-failed"); n == 0 {
				t.Error("there was no event")
			}
			if n := h.countEvents("proxy-restored"); (n > 0) != c.missed {
				t.Errorf("it was reported as back %d times", n)
			}
			h.stop(t, "w")
			h.clean(t)
		})
	}
}

// What an Envoy is in trouble with is its state and the workload's message: the end of its process, what it rejects,
// and a connection to Consul that it does not get.
func TestAProxyInTrouble(t *testing.T) {
	h := newHost(t)
	h.services.Limits.Ready = 50 * time.Millisecond
	s := withServices(spec("w"), sidecar("web"))
	s.Sidecars = []specs.Sidecar{{Command: []string{"envoy", "-c", "${bootstrap}"}}}
	st := h.start(t, s).Services[0]
	is := func(state servicesteps.ProxyState, message string) Workload {
		t.Helper()
		return h.eventually(t, "w", string(state), func(w Workload) bool {
			return w.Services[0].Proxy.State == state && strings.Contains(w.Message, message) &&
				(w.Message == "") == (message == "")
		})
	}
	if st.Proxy.State != servicesteps.ProxyStarting {
		is(servicesteps.ProxyStarting, "")
	}
	check.NoError(t, h.ProxyEnded(ref("w"), process.Ref{}, "web", 2, "it ended with exit code 1: no such flag"))
	w := is(servicesteps.ProxyFailing, `service "web": the proxy has not been ready since`)
	if p := w.Services[0].Proxy; p.Restarts != 2 || p.Since.IsZero() ||
		!strings.HasSuffix(w.Message, "exit code 1: no such flag") {
		t.Errorf("its state is %+v: %s", p, w.Message)
	}
	if err := h.ProxyEnded(ref("w"), refOf(1), "web", 3, "x"); !errors.Is(err, ErrNotOwner) {
		t.Errorf("of a process that does not own it: %v", err)
	}
	if h.countEvents("proxy-ended") != 1 || h.countEvents("proxy-failed") != 1 {
		t.Errorf("the events are %q", h.serviceEvents())
	}

	var stats atomic.Value
	say := func(rejectedListeners, listeners, rejectedClusters, clusters, streams int) {
		stats.Store(fmt.Sprintf("cluster_manager.cds.update_rejected: %d\ncluster_manager.cds.update_success: %d\n"+
			"control_plane.connected_state: %d\n"+
			"listener_manager.lds.update_rejected: %d\nlistener_manager.lds.update_success: %d\n",
			rejectedClusters, clusters, streams, rejectedListeners, listeners))
	}
	say(0, 1, 0, 1, 1)
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait) // after the closes below
	for _, socket := range []string{st.ReadySocket, st.AdminSocket} {
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/stats" {
				_, _ = io.WriteString(w, stats.Load().(string))
			}
		})}
		listener := check.Must(net.Listen("unix", socket))(t)
		serving.Go(func() { _ = server.Serve(listener) })
		t.Cleanup(func() { _ = server.Close() })
	}
	is(servicesteps.ProxyReady, "")
	say(1, 1, 0, 1, 1)
	is(servicesteps.ProxyFailing, "rejects listeners")
	say(1, 2, 0, 1, 1)
	is(servicesteps.ProxyReady, "")
	say(1, 2, 1, 2, 1)
	is(servicesteps.ProxyFailing, "rejects clusters")
	say(1, 2, 1, 3, 1)
	is(servicesteps.ProxyReady, "")
	say(1, 2, 1, 3, 0)
	is(servicesteps.ProxyFailing, "no connection to Consul")
	check.NoError(t, h.Leave(t.Context(), ref("w"))) // Consul ends the connection then
	is(servicesteps.ProxyReady, "has left")
	h.stop(t, "w")
	h.clean(t)
}

// A port on which an Envoy listens is its workload's, though no spec names it. One that another workload has is
// reported.
func TestPortsThatConsulNames(t *testing.T) {
	h := newHost(t)
	h.services.Limits.Ready = 50 * time.Millisecond
	free := freePorts(t, 2)
	on := func(id string, port int) Spec {
		s := spec(id)
		s.Ports = []specs.Port{{Label: "p", Static: port}}
		return s
	}
	h.start(t, on("x", free[0]))
	st := h.start(t, withServices(spec("w"), sidecar("web"))).Services[0]
	var listeners atomic.Value
	listen := func(numbers ...int) {
		text := `{"listener_statuses": [{"name": "s", "local_address": {"pipe": {"path": "/s"}}}`
		for _, p := range numbers {
			text += fmt.Sprintf(`, {"name": "l", "local_address": {"socket_address": {"address": "0.0.0.0", "port_value": %d}}}`, p)
		}
		listeners.Store(text + "]}")
	}
	listen(free...)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/listeners" {
			_, _ = io.WriteString(w, listeners.Load().(string))
		}
	})}
	defer server.Close()
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait) // after the closes below
	for _, socket := range []string{st.ReadySocket, st.AdminSocket} {
		listener := check.Must(net.Listen("unix", socket))(t)
		serving.Go(func() { _ = server.Serve(listener) })
		t.Cleanup(func() { _ = listener.Close() })
	}
	h.eventually(t, "w", "in conflict", func(w Workload) bool {
		return w.Services[0].Proxy.State == servicesteps.ProxyFailing && strings.HasSuffix(w.Message, fmt.Sprintf(
			`its listener "l" gets connections of another workload: the port is taken: %d is held by workload "x"`, free[0]))
	})
	if _, err := h.Start(t.Context(), on("y", free[1]), Options{}); !errors.Is(err, ports.ErrTaken) ||
		!strings.Contains(err.Error(), `held by workload "w"`) {
		t.Errorf("a port on which the proxy of another workload listens: %v", err)
	}
	listen()
	h.eventuallyWell(t, "w")
	h.start(t, on("y", free[1]))
	for _, id := range []string{"w", "x", "y"} {
		h.stop(t, id)
	}
	h.clean(t)
}
