package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// callers call the driver "local" through csi-bridge until end, and return how many calls were answered. A call that
// fails fails the test.
func callers(t *testing.T, h *testhost.Host) (end func() int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	client := h.Client()
	var all sync.WaitGroup
	var answered atomic.Int64
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				_, err := client.Volumes.ListExternal(ctx, &hostv1.ListExternalRequest{PluginId: "local"})
				if err != nil && ctx.Err() == nil {
					t.Errorf("a call during reloads: %v", err)
					return
				}
				answered.Add(1)
			}
		})
	}
	stop := sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(stop)
	return func() int64 { stop(); return answered.Load() }
}

// reloadable prepares a host whose configuration can be written again with other blocks.
func reloadable(t *testing.T, more string) (h *testhost.Host, write func(blocks string)) {
	t.Helper()
	h = testhost.New(t, more)
	base, err := os.ReadFile(h.Path("agent.hcl"))
	check.NoError(t, err)
	quiet := strings.Replace(string(base), `"debug"`, `"info"`, 1) // debug has a line for each call
	write = func(blocks string) { h.Write("agent.hcl", quiet+blocks) }
	return h, write
}

// Plugin blocks are taken over while calls run, none of which fails: a good change by a new process, a bad one not at
// all. A file with a mistake changes nothing.
func TestReloadOfPlugins(t *testing.T) {
	t.Parallel()
	h, write := reloadable(t, "")
	local := testhost.LocalDriver(t)
	write(local)
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	h.Run("workload", "start", workload(h, "w", "data", ""))
	calls := callers(t, h)
	serving := func() *hostv1.Plugin {
		t.Helper()
		p, err := bridge(h)
		check.NoError(t, err)
		return p
	}
	reload := func(want string) {
		t.Helper()
		if out := h.Run("agent", "reload"); !strings.Contains(out, want) {
			t.Errorf("reload says %q, not %q", out, want)
		}
	}
	first := serving()
	reload("no plugin or csi_driver block has changed")

	write(local + "plugin \"csi-bridge\" {\n  limits {\n    memory = \"512MiB\"\n  }\n}\n")
	reload(`plugin "csi-bridge": added`)
	second := serving()
	if second.GetGeneration() != first.GetGeneration()+1 {
		t.Errorf("generation %d serves after %d", second.GetGeneration(), first.GetGeneration())
	}

	// A configuration that the plugin refuses is tried beside it.
	write(local + "plugin \"csi-bridge\" {\n  config {\n    nonsense = 1\n  }\n}\n")
	at := fmt.Sprintf("%s:%d", h.Path("agent.hcl"), lines(t, h, "config {"))
	h.Refused(4, []string{`plugin "csi-bridge" is not taken over`}, "agent", "reload")
	if p := serving(); p.GetPid() != second.GetPid() || !strings.Contains(p.GetConfigProblem(), at) {
		t.Errorf("with a refused block %v serves, with %q", p, p.GetConfigProblem())
	}
	// A version that what serves does not have is refused before anything is tried.
	write(local + "plugin \"csi-bridge\" {\n  version = \">= 99\"\n}\n")
	h.Refused(4, []string{`plugin "csi-bridge" is not taken over`}, "agent", "reload")

	// Mistakes in the files change nothing, and are all named with their places.
	write(local + "plugin \"csi-bridge\" {\n  limits {\n    memory = \"1KiB\"\n  }\n}\nplugin \"gone\" {}\n")
	h.Refused(2, []string{fmt.Sprintf("agent.hcl:%d: ", lines(t, h, "memory")), "nothing was changed"}, "agent", "reload")
	write(local + "plugin \"csi-bridge\" {\n  limits {\n    processes = 64\n  }\n}\nplugin \"gone\" {}\n")
	at = fmt.Sprintf("%s:%d: plugin \"gone\": ", h.Path("agent.hcl"), lines(t, h, "gone"))
	h.Refused(2, []string{at, "has no file of it"}, "agent", "reload")
	h.Refused(2, []string{at, "has no file of it"}, "agent", "-check", "-config", h.Path("agent.hcl"))
	if p := serving(); p.GetPid() != second.GetPid() {
		t.Errorf("a bad file changed what serves from %v to %v", second, p)
	}

	// What only a new agent takes over is named.
	write(local + "plugin \"csi-bridge\" {\n  limits {\n    memory = \"512MiB\"\n  }\n}\ngc {\n  interval = \"1m\"\n}\n")
	reload("gc: has changed, and needs a restart of the agent")
	if p := serving(); p.GetPid() != second.GetPid() || p.GetConfigProblem() != "" {
		t.Errorf("after the way back %v serves, with %q", p, p.GetConfigProblem())
	}
	if out := h.Run("agent", "-check", "-config", h.Path("agent.hcl")); !strings.Contains(out, "is valid") {
		t.Errorf("the check says %q", out)
	}

	// A signal does the same.
	write(local)
	check.NoError(t, unix.Kill(h.PID(), unix.SIGHUP))
	h.Eventually("the block is taken over by a signal", func() error {
		if p := serving(); p.GetGeneration() <= second.GetGeneration() {
			return errors.New(p.String())
		}
		return nil
	})
	if n := calls(); n < 100 {
		t.Errorf("only %d calls ran meanwhile", n)
	} else {
		t.Logf("%d calls ran meanwhile", n)
	}
	h.Run("workload", "stop", "w")
	h.NothingInUse()
}

// lines returns the last line of the configuration that has a text.
func lines(t *testing.T, h *testhost.Host, text string) (line int) {
	t.Helper()
	data, err := os.ReadFile(h.Path("agent.hcl"))
	check.NoError(t, err)
	for n, l := range strings.Split(string(data), "\n") {
		if strings.Contains(l, text) {
			line = n + 1
		}
	}
	return line
}

// Driver blocks are taken over while calls run: a new driver starts, a changed setting leaves the process alone, and a
// driver in use keeps its process until it is not.
func TestReloadOfDrivers(t *testing.T) {
	t.Parallel()
	h, write := reloadable(t, "")
	local := testhost.LocalDriver(t)
	other := strings.NewReplacer(`"local"`, `"other"`, "/volumes", "/others").Replace(local)
	write(local)
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	h.Run("workload", "start", workload(h, "w", "data", ""))
	calls := callers(t, h)
	shown := func(id string) *hostv1.Driver {
		t.Helper()
		resp, err := h.Client().Drivers.GetDriver(t.Context(), &hostv1.GetDriverRequest{Id: id})
		if connect.CodeOf(err) == connect.CodeNotFound {
			return nil
		}
		check.NoError(t, err)
		return resp.GetDriver()
	}
	pid := func(id string) int64 { return shown(id).GetPid() }
	reload := func(want ...string) {
		t.Helper()
		out := h.Run("agent", "reload")
		for _, text := range want {
			if !strings.Contains(out, text) {
				t.Errorf("reload says %q, not %q", out, text)
			}
		}
	}
	first := pid("local")

	write(local + other)
	reload(`csi_driver "other": added`)
	h.AwaitDrivers()
	volume(h, driver{id: "other"}, "more", "single-node-writer", "")
	second := pid("other")

	// A setting of the calls alone.
	before := shown("local")
	write(strings.Replace(local, `settle_time = "1s"`, `settle_time = "2s"`, 1) + other)
	reload(`csi_driver "local": changed`)
	if now := shown("local"); now.GetPid() != first || !now.GetChangedAt().AsTime().Equal(before.GetChangedAt().AsTime()) {
		t.Errorf("a changed settle_time disturbs %v: %v", before, now)
	}
	// How the process is run: that of the driver in use waits.
	argument := strings.NewReplacer(`"-node-id"`, `"-node-id=${node.name}", "-node-id"`)
	write(argument.Replace(local) + argument.Replace(other))
	reload(`csi_driver "local": changed, waits: `, `csi_driver "other": changed`)
	h.AwaitDrivers()
	if now := pid("local"); now != first {
		t.Errorf("process %d of a driver in use was replaced by %d", first, now)
	}
	if now := pid("other"); now == second || now == 0 {
		t.Errorf("process %d of a driver that is not in use runs on as %d", second, now)
	}

	// Drivers that are declared no more: the one in use stays, and is named.
	write("")
	reload(`csi_driver "local": removed, waits: it is kept because it is in use by volume "data" of workload "w"`, `csi_driver "other": removed`)
	h.Eventually("the driver that is not in use is gone", func() error {
		if now := pid("other"); now != 0 {
			return fmt.Errorf("process %d", now)
		}
		return nil
	})
	if now := pid("local"); now != first {
		t.Errorf("process %d of a driver in use was replaced by %d", first, now)
	}
	write(local)
	reload(`csi_driver "local": added`)
	if now := pid("local"); now != first {
		t.Errorf("process %d was replaced by %d when its driver came back", first, now)
	}

	// A program that is not there is found before anything is changed.
	write(local + strings.Replace(other, filepath.Base(testbin.Build(t, "drivers/csi-local")), "nothing", 1))
	at := fmt.Sprintf("agent.hcl:%d: ", lines(t, h, `csi_driver "other"`))
	h.Refused(2, []string{at, "nothing"}, "agent", "reload")
	if n := calls(); n < 100 {
		t.Errorf("only %d calls ran meanwhile", n)
	}
	h.Run("workload", "stop", "w")
	h.NothingInUse()
}
