package pluginbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// rig is a plugin directory with one plugin, and a supervisor for it.
type rig struct {
	kind string
	name string // the plugin's
	cfg  supervisor.Config
	host *supervisor.Supervisor
	// good is the path of the executable. A line may be appended to it.
	good string
	// fixture is the path of the supervisor's fixture, which misbehaves according to its last line.
	fixture string
}

// newRig uses csi-bridge as the storage plugin, and the fixture for any other kind.
func newRig(b *testing.B, kind string) *rig {
	b.Helper()
	dir := shortDir(b)
	g := &rig{kind: kind, name: "fixture", cfg: supervisor.Config{
		PluginDir: filepath.Join(dir, "plugins"), DataDir: filepath.Join(dir, "data"),
		StopPlugins: true, StartTimeout: 2 * time.Second,
	}}
	g.fixture = testbin.BuildDir(b, filepath.Join(testbin.Root(), "host/internal/pluginhost/supervisor/testdata/plugin"))
	g.good = g.fixture
	if kind == "storage" {
		g.name, g.good = "csi-bridge", testbin.Build(b, "plugins/csi-bridge")
	}
	check.NoError(b, os.Mkdir(g.cfg.PluginDir, 0o755))
	g.put(b, "good", "1.0.0")
	return g
}

// open starts the supervisor, and waits until the plugin serves.
func (g *rig) open(b *testing.B) {
	b.Helper()
	g.host = supervisor.New(g.cfg)
	check.NoError(b, g.host.Open(b.Context()))
	b.Cleanup(func() {
		if err := g.host.Close(); err != nil {
			b.Error(err)
		}
		if left := g.processes(); len(left) > 0 {
			b.Errorf("processes %v are left", left)
		}
	})
	g.await(b, "it runs", func(st supervisor.Status) bool { return st.State == supervisor.Running })
}

// put installs an executable in the plugin directory, as an operator would, and returns when that was done.
// Each one has a different checksum. Another process copies it, because that is not the host's work.
func (g *rig) put(b *testing.B, mode, version string) (at time.Time) {
	b.Helper()
	from := g.fixture
	if mode == "good" {
		from = g.good
	}
	line := fmt.Sprintf("#fixture %s %s %s", mode, version, g.kind)
	return install(b, from, filepath.Join(g.cfg.PluginDir, g.name), line)
}

// install renames a copy of an executable, with a line appended, to path.
func install(b *testing.B, from, path, line string) (at time.Time) {
	b.Helper()
	if out, err := exec.Command("cp", from, path+".tmp").CombinedOutput(); err != nil {
		b.Fatalf("copy %s: %v: %s", from, err, out)
	}
	f := check.Must(os.OpenFile(path+".tmp", os.O_APPEND|os.O_WRONLY, 0))(b)
	_, err := fmt.Fprintf(f, "\n%s\n", line)
	check.NoError(b, errors.Join(err, f.Close()))
	at = time.Now()
	check.NoError(b, os.Rename(path+".tmp", path))
	return at
}

// await waits for the plugin's status.
func (g *rig) await(b *testing.B, what string, ok func(supervisor.Status) bool) (st supervisor.Status) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
	defer cancel()
	err := g.host.Await(ctx, func(all []supervisor.Status) bool {
		if n := slices.IndexFunc(all, func(s supervisor.Status) bool { return s.Name == g.name }); n >= 0 {
			st = all[n]
		}
		return ok(st)
	})
	if err != nil {
		b.Fatalf("%s: %s: %v; it is %+v", g.kind, what, err, st)
	}
	return st
}

// processes returns the processes that run from the copies in the data directory.
func (g *rig) processes() (pids []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/exe") // the pattern is valid
	for _, path := range all {
		if exe, err := os.Readlink(path); err == nil && strings.HasPrefix(exe, g.cfg.DataDir) {
			pids = append(pids, filepath.Base(filepath.Dir(path)))
		}
	}
	return pids
}

// sockets returns the sockets of the plugin's processes.
func (g *rig) sockets() (paths []string) {
	paths, _ = filepath.Glob(filepath.Join(g.cfg.DataDir, "plugins", "run", "*", "*")) // the pattern is valid
	return paths
}

// startDriver runs csi-local, which csi-bridge calls.
func startDriver(b *testing.B) storage.Driver {
	b.Helper()
	dir := shortDir(b)
	d := storage.Driver{ID: "local", Endpoint: "unix://" + filepath.Join(dir, "csi.sock")}
	var said bytes.Buffer
	cmd := exec.Command(testbin.Build(b, "drivers/csi-local"), "-endpoint", d.Endpoint, "-node-id", "a", "-data-dir",
		filepath.Join(dir, "volumes"))
	cmd.Stdout, cmd.Stderr = &said, &said
	check.NoError(b, cmd.Start())
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if b.Failed() {
			b.Logf("csi-local said:\n%s", said.String())
		}
	})
	return d
}

// shortDir returns a temporary directory whose path leaves room for a socket's.
func shortDir(b *testing.B) string {
	b.Helper()
	dir := check.Must(os.MkdirTemp("", "pb-"))(b)
	b.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			b.Error(err)
		}
	})
	return dir
}
