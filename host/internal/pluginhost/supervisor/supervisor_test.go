package supervisor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

func TestPluginComesUp(t *testing.T) {
	t.Setenv("CONSUL_HTTP_TOKEN", "secret")
	w := newWorld(t)
	w.configure(supervisor.Plugin{
		Name: "fixture", Args: []string{"good", "x y"}, Env: []string{"MINE=1"}, Config: []byte(`{"a":1}`), Version: "~> 1.2",
	})
	s := w.open()
	answer := mustCall(t, s, "fixture", "log hello")
	if answer["config"] != `{"a":1}` || answer["args"] != "good x y" {
		t.Errorf("config %s, arguments %s", answer["config"], answer["args"])
	}
	if env := answer["env"]; strings.Contains(env, "secret") || strings.Contains(env, "PRIVATE KEY") ||
		!strings.Contains(env, "MINE=1") {
		t.Errorf("environment: %s", env)
	}
	st := status(t, s, "fixture")
	want := supervisor.Status{
		Name: "fixture", State: supervisor.Running, Kind: "storage.v1", Version: "1.2.3",
		SHA256: sumOf(t, filepath.Join(w.cfg.PluginDir, "fixture")), PID: st.PID, Generation: 1, StartedAt: st.StartedAt,
		Calls: 1, Versions: st.Versions,
	}
	if !reflect.DeepEqual(st, want) || strconv.Itoa(st.PID) != answer["pid"] || time.Since(st.StartedAt) > time.Minute {
		t.Errorf("status %+v, want %+v", st, want)
	}
	waitFor(t, "the plugin's log line", func() bool {
		return strings.Contains(w.log.String(), "[WARN]  fixture: said in a call: volume=hello")
	})
	if keys, _ := filepath.Glob(w.cfg.DataDir + "/plugins/run/*/tls.pem"); len(keys) != 0 {
		t.Errorf("keys lie about: %v", keys)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if w.count(supervisor.EventStarted) != 1 || w.count(supervisor.EventStopped) != 1 {
		t.Errorf("events: %+v", w.events)
	}
	if _, err := s.Acquire(t.Context(), "fixture"); !errors.Is(err, supervisor.ErrClosed) {
		t.Errorf("acquire after close: %v", err)
	}
}

func TestConfiguredPluginThatIsNotThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(supervisor.Plugin{Name: "later"})
	s := w.open()
	st := await(t, s, "later", func(st supervisor.Status) bool { return st.State == supervisor.BackingOff })
	if !strings.Contains(st.LastError, "no such file") || !status(t, s, "later").Missing ||
		st.Mend != "pannier agent plugin install SOURCE later" {
		t.Errorf("status: %+v", st)
	}
	w.install("later")
	mustCall(t, s, "later", "")
	if st := status(t, s, "later"); st.LastError != "" || st.Missing {
		t.Errorf("it serves, and its status is %+v", st)
	}
	if _, err := s.Acquire(t.Context(), "nobody"); !errors.Is(err, supervisor.ErrUnknown) {
		t.Errorf("acquire an unknown plugin: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, spoil := range map[string]func(w *world){
		"a relative directory":     func(w *world) { w.cfg.DataDir = "data" },
		"a bad checksum":           func(w *world) { w.configure(supervisor.Plugin{Name: "p", Checksum: "md5:1"}) },
		"a bad constraint":         func(w *world) { w.configure(supervisor.Plugin{Name: "p", Version: "new"}) },
		"a name that is a path":    func(w *world) { w.configure(supervisor.Plugin{Name: "../p"}) },
		"a plugin twice":           func(w *world) { w.cfg.Plugins = []supervisor.Plugin{{Name: "p"}, {Name: "p"}} },
		"a directory of everybody": func(w *world) { os.Chmod(w.cfg.PluginDir, 0o777) },
		"a directory of a group":   func(w *world) { os.Chmod(w.cfg.PluginDir, 0o775) },
		"everybody's one above":    func(w *world) { os.Chmod(filepath.Dir(w.cfg.PluginDir), 0o777) },
	} {
		w := newWorld(t)
		spoil(w)
		s := supervisor.New(w.cfg)
		err := s.Open(t.Context())
		s.Close()
		if err == nil {
			t.Errorf("%s: opened", name)
		}
		t.Log(err)
	}
}

func TestCrashIsRestarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	before := mustCall(t, s, "fixture", "")
	handle, err := s.Acquire(within(t), "fixture")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, s, "fixture", "exit"); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("the call that killed it: %v", err)
	}
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Generation == 2 && st.State == supervisor.Running })
	after := mustCall(t, s, "fixture", "")
	st := status(t, s, "fixture")
	if after["pid"] == before["pid"] || st.Restarts != 1 || !strings.Contains(st.LastError, "exit status 3") {
		t.Errorf("pid %s then %s, status %+v", before["pid"], after["pid"], st)
	}
	if n := len(w.pids()); n != 1 {
		t.Errorf("%d processes", n)
	}
	handle.Release()
}

func TestCrashLoopBacksOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(supervisor.Plugin{Name: "fixture", Args: []string{"crash-soon"}})
	w.cfg.Restart = supervisor.Restart{Min: 50 * time.Millisecond, Max: 400 * time.Millisecond, Stable: time.Minute}
	start := time.Now()
	s := w.open()
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Restarts+w.count(supervisor.EventFailed) >= 5 })
	// At least half of each pause: 25 + 50 + 100 + 200 ms between five ends.
	if took := time.Since(start); took < 375*time.Millisecond {
		t.Errorf("five ends in %v: it does not back off", took)
	}
	if st := status(t, s, "fixture"); !strings.Contains(st.LastError, "exit status 9") {
		t.Errorf("status: %+v", st)
	}
}

func TestPanicEndsOnlyItsCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	before := mustCall(t, s, "fixture", "")
	_, err := call(t, s, "fixture", "panic")
	if grpcstatus.Code(err) != codes.Internal || !strings.Contains(err.Error(), "assignment to entry in nil map") {
		t.Errorf("the call: %v", err)
	}
	if after := mustCall(t, s, "fixture", ""); after["pid"] != before["pid"] {
		t.Error("the process was replaced")
	}
	waitFor(t, "the stack in the log", func() bool { return strings.Contains(w.log.String(), "testdata/plugin/main.go") })
}

func TestUnhealthyPluginIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(supervisor.Plugin{Name: "fixture", Args: []string{"unwell"}})
	s := w.open()
	st := await(t, s, "fixture", func(st supervisor.Status) bool {
		return st.State == supervisor.Unhealthy &&
			st.PID != 0
	})
	if st.Message != "no driver answers" {
		t.Errorf("status: %+v", st)
	}
	mustCall(t, s, "fixture", "")
}

// A plugin that hangs, or does not become healthy again, is replaced.
func TestHungOrUnhealthyPluginIsReplaced(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mode            string
		silence, unwell time.Duration
		want            string
	}{
		"hung":   {"good", 200 * time.Millisecond, time.Hour, "it has sent no health report for 200ms"},
		"unwell": {"unwell", time.Hour, 200 * time.Millisecond, "it has been unhealthy for 200ms: no driver answers"},
	} {
		w := newWorld(t)
		w.configure(supervisor.Plugin{Name: "fixture", Args: []string{tc.mode}})
		s := supervisor.New(w.cfg)
		s.SetPatience(tc.silence, tc.unwell)
		if err := s.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		st := await(t, s, "fixture", func(st supervisor.Status) bool { return st.Restarts == 1 })
		if !strings.Contains(st.LastError, tc.want) {
			t.Errorf("%s: %+v", name, st)
		}
		await(t, s, "fixture", func(st supervisor.Status) bool { return st.Generation == 2 && st.PID != 0 })
	}
}

func TestFloodOfOutput(t *testing.T) { // not parallel: the flood also uses the processor
	w := newWorld(t)
	w.install("printer")
	w.configure(supervisor.Plugin{Name: "fixture", Args: []string{"flood"}})
	w.configure(supervisor.Plugin{Name: "printer", Args: []string{"print"}})
	s := w.open()
	for range 20 {
		mustCall(t, s, "fixture", "sleep 10ms")
		mustCall(t, s, "printer", "sleep 10ms")
	}
}

func TestStopEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	child, err := strconv.Atoi(mustCall(t, s, "fixture", "child")["child"])
	if err != nil || !alive(child) {
		t.Fatalf("no child: %v", err)
	}
	s.Close()
	if alive(child) {
		t.Error("the plugin's child is still there")
	}

	s = w.open()
	child, _ = strconv.Atoi(mustCall(t, s, "fixture", "child")["child"])
	if _, err := call(t, s, "fixture", "exit"); err == nil {
		t.Fatal("it did not exit")
	}
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Restarts == 1 && st.State == supervisor.Running })
	mustCall(t, s, "fixture", "")
	if alive(child) {
		t.Error("the child of a plugin that crashed is still there")
	}
}

func TestCloseFinishesCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	mustCall(t, s, "fixture", "")
	done := make(chan error, 1)
	go func() {
		_, err := call(t, s, "fixture", "sleep 1s")
		done <- err
	}()
	waitFor(t, "the call", func() bool { return strings.Contains(w.log.String(), "asleep") })
	s.Close()
	if err := <-done; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
}

func TestSigtermFinishesCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	mustCall(t, s, "fixture", "")
	pid := status(t, s, "fixture").PID
	done := make(chan error, 1)
	go func() {
		_, err := call(t, s, "fixture", "sleep 1s")
		done <- err
	}()
	waitFor(t, "the call", func() bool { return strings.Contains(w.log.String(), "asleep") })
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	st := await(t, s, "fixture", func(st supervisor.Status) bool { return st.Restarts == 1 })
	if !strings.Contains(st.LastError, "exit status 0") {
		t.Errorf("status: %+v", st)
	}
}

func TestRunsAsAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root; not covered: a plugin that runs as another user")
	}
	w := newWorld(t)
	if err := os.Chmod(filepath.Dir(w.cfg.DataDir), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(w.cfg.DataDir, 0o711); err != nil {
		t.Fatal(err)
	}
	w.configure(supervisor.Plugin{Name: "fixture", User: "nobody"})
	s := w.open()
	answer := mustCall(t, s, "fixture", "")
	data, err := os.ReadFile("/proc/" + answer["pid"] + "/status")
	if err != nil || !strings.Contains(string(data), "Uid:\t65534\t65534") {
		t.Errorf("%v\n%s", err, data)
	}
}

// A plugin without a config block gets an empty object, also one that is not made with the SDK, which would replace
// nothing by it.
func TestPluginWithoutConfiguration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var got atomic.Value
	w.cfg.Dial = func(string, uint64) []grpc.DialOption {
		return []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
			cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			if c, ok := req.(*pluginv1.ConfigureRequest); ok {
				got.Store(string(c.GetConfig()))
			}
			return call(ctx, method, req, reply, cc, opts...)
		})}
	}
	mustCall(t, w.open(), "fixture", "")
	if got.Load() != "{}" {
		t.Errorf("it got %q", got.Load())
	}
}
