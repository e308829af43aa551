package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

const pannierAgent = "host/cmd/pannier-agent"

// upgradable is a host whose agent's program can be replaced, with a driver, and a workload with a volume.
type upgradable struct {
	*testhost.Host
	local driver
}

func newUpgradable(t *testing.T) upgradable {
	t.Helper()
	h := upgradable{testhost.New(t, testhost.LocalDriver(t)), drivers[0]}
	h.Install(read(t, testbin.BuildVersion(t, pannierAgent, "1.0.0")))
	h.Start()
	volume(h.Host, h.local, "kept", "single-node-writer", "")
	h.Run("workload", "start", workload(h.Host, "kept", "kept", ""))
	return h
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return data
}

// alive describes the processes that go on, and the volume in use.
func (h upgradable) alive(t *testing.T) string {
	t.Helper()
	s, err := h.Status()
	must(t, err)
	mounts := slices.DeleteFunc(h.VolumeMounts(),
		func(m string) bool { return !strings.Contains(m, "/per-workload/kept/") })
	if len(mounts) != 1 {
		t.Fatalf("the volume in use is mounted at %q, want one path", mounts)
	}
	mounted, err := os.Stat(mounts[0])
	must(t, err)
	return fmt.Sprint(s.GetPid(), s.GetPlugins()[0].GetPid(), s.GetDrivers()[0].GetPid(),
		mounted.Sys().(*syscall.Stat_t).Dev)
}

// load calls the API in several ways, each in a loop of its own.
type load struct {
	over    chan struct{}
	running sync.WaitGroup

	mu    sync.Mutex
	calls map[string][]time.Duration
	errs  []error
}

// caller makes a kind of call.
type caller struct {
	name string
	do   func(ctx context.Context) error
}

func begin(calls ...caller) *load {
	l := &load{over: make(chan struct{}), calls: map[string][]time.Duration{}}
	for _, c := range calls {
		l.running.Go(func() {
			for {
				select {
				case <-l.over:
					return
				default:
				}
				began := time.Now()
				err := c.do(context.Background())
				l.mu.Lock()
				l.calls[c.name] = append(l.calls[c.name], time.Since(began))
				if err != nil {
					l.errs = append(l.errs, fmt.Errorf("%s: %w", c.name, err))
				}
				l.mu.Unlock()
			}
		})
	}
	return l
}

// end ends the load, and returns the first errors.
func (l *load) end(t *testing.T) []error {
	t.Helper()
	close(l.over)
	l.running.Wait()
	for name, all := range l.calls {
		slices.Sort(all)
		t.Logf("%d calls: %s, median %s, longest %s", len(all), name, all[len(all)/2], all[len(all)-1])
	}
	return l.errs[:min(len(l.errs), 10)]
}

// everything calls the API in all ways that matter.
func (h upgradable) everything(t *testing.T) *load {
	t.Helper()
	volume(h.Host, h.local, "mounted", "single-node-writer", "")
	status := func(ctx context.Context, c *api.Client) error {
		_, err := c.Agent.Status(ctx, &hostv1.StatusRequest{})
		return err
	}
	kept, c, other := h.Client(), h.Client(), h.Client()
	s, err := h.Status()
	must(t, err)
	address := s.GetHttpAddress()
	var index uint64
	return begin(
		caller{"a query over a kept connection", func(ctx context.Context) error { return status(ctx, kept) }},
		caller{"a query over a new connection", func(ctx context.Context) error {
			c, err := api.New("unix://" + h.Socket())
			if err != nil {
				return err
			}
			defer c.Close()
			return status(ctx, c)
		}},
		caller{"a volume is created and deleted", func(ctx context.Context) error {
			v := spec("short-lived", "single-node-writer")
			v.PluginId, v.ExternalId = h.local.id, ""
			_, err := c.Volumes.CreateVolume(ctx, &hostv1.CreateVolumeRequest{Spec: v})
			if err == nil {
				_, err = c.Volumes.DeleteVolume(ctx, &hostv1.DeleteVolumeRequest{Id: v.GetId()})
			}
			return err
		}},
		caller{"a workload with a volume is started and stopped", func(ctx context.Context) error {
			return startAndStop(ctx, other, "comes-and-goes", "mounted")
		}},
		caller{"a query that waits", func(ctx context.Context) error {
			resp, err := kept.Volumes.ListVolumes(ctx, &hostv1.ListVolumesRequest{
				Read: &hostv1.ReadOptions{Index: index, Wait: durationpb.New(time.Second)},
			})
			if err == nil {
				index = resp.GetMeta().GetIndex()
			}
			return err
		}},
		caller{"events", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			stream, err := kept.Agent.Events(ctx, &hostv1.EventsRequest{Follow: true})
			if err == nil {
				for stream.Receive() {
				}
				err = stream.Err()
				_ = stream.Close()
			}
			// A stream that has begun ends, and the caller opens another one.
			if code := connect.CodeOf(err); code != connect.CodeDeadlineExceeded && code != connect.CodeUnavailable {
				return err
			}
			return nil
		}},
		caller{"health over TCP", func(context.Context) error {
			resp, err := http.Get("http://" + address + "/v1/health")
			if err != nil {
				return err
			}
			text, err := io.ReadAll(resp.Body)
			if err == nil && resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("%s: %s", resp.Status, text)
			}
			return errors.Join(err, resp.Body.Close())
		}},
	)
}

// TestAgentIsUpgradedUnderLoad: no call fails while the agent's program is replaced, again and again. Everything that
// runs beside the agent goes on.
func TestAgentIsUpgradedUnderLoad(t *testing.T) {
	t.Parallel()
	h := newUpgradable(t)
	before := h.alive(t)
	l := h.everything(t)
	for n := range 6 {
		version := fmt.Sprintf("2.0.%d", n%2)
		h.Install(read(t, testbin.BuildVersion(t, pannierAgent, version)))
		h.Run("agent", "upgrade")
		if s, err := h.Status(); err != nil || s.GetVersion() != "v"+version {
			t.Errorf("the version is %s, want v%s (%v)", s.GetVersion(), version, err)
		}
	}
	for _, err := range l.end(t) {
		t.Error(err)
	}
	if after := h.alive(t); after != before {
		t.Errorf("before: %s, after: %s", before, after)
	}
	h.Run("workload", "stop", h.Path("kept.hcl"))
	h.NothingInUse()
	h.Stop()
	if _, err := os.Lstat(h.Socket()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket after the end: %v", err)
	}
}

// hello is what a program says that is tried.
const hello = `printf '{"hello":{"version":"bad","ledger":%d}}\n' >&3; `

// TestBadProgramReplacesNoAgent: a program that does not come up does not replace the agent, and no call fails.
func TestBadProgramReplacesNoAgent(t *testing.T) {
	t.Parallel()
	h := newUpgradable(t)
	before := h.alive(t)
	l := h.everything(t)
	good := read(t, testbin.BuildVersion(t, pannierAgent, "1.0.0"))
	h.Install(good)
	script := func(text string) []byte { return []byte("#!/bin/sh\n" + text) }
	foreign := slices.Clone(good)
	foreign[18] ^= 0xff // e_machine of the ELF header
	for _, bad := range []struct {
		name    string
		program []byte
		code    int
		says    string
	}{
		{"it is for another machine", foreign, 4, "exec format error"},
		{"it exits", script("echo no such flag >&2; exit 3"), 4, "does not come up: no such flag"},
		{"it says nothing", script("exec sleep 1000"), 4, "within 10s"},
		{"it is older", script(fmt.Sprintf(hello, 0) + "read go"), 4, "up to level 0"},
		{
			"it exits when it is to come up", script(fmt.Sprintf(hello, 99) + "read go; echo damaged >&2; exit 1"), 1,
			"does not come up: damaged",
		},
		{"it hangs when it is to come up", script(fmt.Sprintf(hello, 99) + "read go; exec sleep 1000"), 1, "has not come up within"},
		{"it is killed when it is to come up", script(fmt.Sprintf(hello, 99) + "read go; kill -9 $$"), 1, "killed"},
		{
			"it cannot be executed when it has come up", script(fmt.Sprintf(hello, 99) +
				`read go; chmod -x "$0"; printf '{"up":true}\n' >&3; exec sleep 1000`), 1, "permission denied",
		},
		{
			"it is replaced when it has come up", script(fmt.Sprintf(hello, 99) +
				`read go; cp "$0" "$0.new"; mv "$0.new" "$0"; printf '{"up":true}\n' >&3; exec sleep 1000`), 1,
			"was replaced",
		},
	} {
		h.Install(bad.program)
		h.Refused(bad.code, []string{bad.says}, "agent", "upgrade")
		if s, err := h.Status(); err != nil || s.GetVersion() != "v1.0.0" || !s.GetReady() {
			t.Errorf("%s: afterwards: %v, %v", bad.name, s, err)
		}
	}
	h.Install(good)
	h.Run("agent", "upgrade")
	for _, err := range l.end(t) {
		t.Error(err)
	}
	if after := h.alive(t); after != before {
		t.Errorf("before: %s, after: %s", before, after)
	}
}

// TestAgentIsKilledDuringItsUpgrade: after SIGKILL at any moment the next agent comes up with everything.
func TestAgentIsKilledDuringItsUpgrade(t *testing.T) {
	t.Parallel()
	h := newUpgradable(t)
	h.Install(read(t, testbin.BuildVersion(t, pannierAgent, "2.0.0")))
	for n := range 12 {
		cmd := h.Command("agent", "upgrade")
		must(t, cmd.Start())
		time.Sleep(time.Duration(n)*30*time.Millisecond + rand.N(30*time.Millisecond)) // the moment is what is tried
		h.Kill()
		_ = cmd.Wait()
		h.Start()
		h.Eventually("no process is tried", func() error {
			for _, pid := range h.Processes() {
				line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if strings.Contains(string(line), "-try") {
					return fmt.Errorf("process %d does", pid)
				}
			}
			return nil
		})
	}
	h.Run("workload", "stop", h.Path("kept.hcl"))
	h.NothingInUse()
}
