package supervisor_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// sideBySide is the number of parallel tests. They mostly wait for processes.
const sideBySide = 6

func TestMain(m *testing.M) {
	check.SideBySide(sideBySide)
	goleak.VerifyTestMain(m)
}

// world is a plugin directory and a data directory. Its processes have ended when the test ends.
type world struct {
	t   *testing.T
	cfg supervisor.Config
	log *output

	hostProgram string   // of host; empty: the usual one
	hostEnv     []string // of host, besides its own

	mu     sync.Mutex
	events []supervisor.Event
}

// newWorld returns a world with a plugin "fixture" in its plugin directory.
func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "sv") // short: sockets go below it
	check.NoError(t, err)
	w := &world{t: t, log: &output{}}
	w.cfg = supervisor.Config{
		PluginDir:    filepath.Join(dir, "plugins"),
		DataDir:      filepath.Join(dir, "data"),
		Logger:       hclog.New(&hclog.LoggerOptions{Output: w.log, Level: hclog.Debug}),
		Restart:      supervisor.Restart{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond, Stable: time.Minute},
		StartTimeout: time.Minute,
		StopTimeout:  5 * time.Second,
		StopPlugins:  true,
		OnEvent: func(e supervisor.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, e)
		},
	}
	check.NoError(t, os.MkdirAll(w.cfg.PluginDir, 0o755))
	t.Cleanup(func() {
		for _, pid := range w.pids() {
			t.Errorf("process %d was left", pid)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		os.RemoveAll(dir)
		if t.Failed() {
			t.Logf("log:\n%s", w.log)
		}
	})
	w.install("fixture")
	w.configure(supervisor.Plugin{Name: "fixture"})
	return w
}

// install puts the fixture into the plugin directory as a plugin of that name, as an operator would: the new file
// replaces the old one atomically.
func (w *world) install(name string) {
	w.t.Helper()
	w.place(name, named(name))
}

// named returns what makes the fixture the plugin that a file's name says.
func named(file string) string {
	name, _, _ := strings.Cut(file, "_v")
	if name == "fixture" {
		return ""
	}
	return "\n#named " + name + "\n"
}

// place puts the fixture into the plugin directory under a file name, with more appended.
func (w *world) place(file, more string) {
	w.t.Helper()
	path := filepath.Join(w.cfg.PluginDir, file)
	copyFile(w.t, fixture(w.t, "plugin"), path+".tmp")
	out, err := os.OpenFile(path+".tmp", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	_, err = out.WriteString(more)
	if err := errors.Join(err, out.Close(), os.Rename(path+".tmp", path)); err != nil {
		w.t.Fatal(err)
	}
}

// fixture builds a program below testdata, once.
func fixture(t *testing.T, name string) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	if built[name] == "" {
		built[name] = testbin.BuildDir(t, "testdata/"+name)
	}
	return built[name]
}

var (
	building sync.Mutex
	built    = map[string]string{}
)

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	check.NoError(t, err)
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	check.NoError(t, err)
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
}

// open starts a supervisor that is closed at the end of the test at the latest.
func (w *world) open() *supervisor.Supervisor {
	w.t.Helper()
	s := supervisor.New(w.cfg)
	if err := s.Open(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	return s
}

// configure sets a plugin's configuration.
func (w *world) configure(p supervisor.Plugin) {
	// Otherwise a program with the race detector sleeps when it exits.
	p.Env = append(p.Env, "GORACE=atexit_sleep_ms=0")
	w.cfg.Plugins = slices.DeleteFunc(w.cfg.Plugins, func(old supervisor.Plugin) bool { return old.Name == p.Name })
	w.cfg.Plugins = append(w.cfg.Plugins, p)
}

// pids returns the processes that run from the copies in the data directory.
func (w *world) pids() (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		line, err := os.ReadFile(d + "/cmdline") // exe is private
		if err == nil && bytes.HasPrefix(line, []byte(w.cfg.DataDir+"/")) {
			pid, _ := strconv.Atoi(filepath.Base(d))
			pids = append(pids, pid)
		}
	}
	return pids
}

func (w *world) count(what supervisor.EventType) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Type == what {
			n++
		}
	}
	return n
}

// within returns a context that ends with the test's patience.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// call makes the fixture do something in a call, and returns its answer.
func call(t *testing.T, s *supervisor.Supervisor, name, do string) (map[string]string, error) {
	t.Helper()
	ctx := within(t)
	handle, err := s.Acquire(ctx, name)
	if err != nil {
		return nil, err
	}
	defer handle.Release()
	req := storage.AttachRequest{Volume: storage.Volume{Name: do}}
	return storage.NewClient(handle.Conn).Attach(ctx, storage.Driver{ID: "d"}, req)
}

func mustCall(t *testing.T, s *supervisor.Supervisor, name, do string) map[string]string {
	t.Helper()
	answer, err := call(t, s, name, do)
	if err != nil {
		t.Fatalf("call %s: %v", name, err)
	}
	return answer
}

func status(t *testing.T, s *supervisor.Supervisor, name string) supervisor.Status {
	t.Helper()
	for _, st := range s.Status() {
		if st.Name == name {
			return st
		}
	}
	t.Fatalf("no plugin %q in %+v", name, s.Status())
	return supervisor.Status{}
}

// await waits for a status of one plugin.
func await(t *testing.T, s *supervisor.Supervisor, name string, ok func(supervisor.Status) bool) supervisor.Status {
	t.Helper()
	var last supervisor.Status
	err := s.Await(within(t), func(all []supervisor.Status) bool {
		for _, st := range all {
			if st.Name == name {
				last = st
			}
		}
		return ok(last)
	})
	if err != nil {
		t.Fatalf("plugin %q does not become what it should: %v; it is %+v", name, err, last)
	}
	return last
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func alive(pid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return rest != "" && rest[0] != 'Z' && rest[0] != 'X'
}

// output is a log that can be read while it is written.
type output struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.buf.Len() > 1<<20 {
		return len(p), nil // the tests that flood do not look at all of it
	}
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
