package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/storage"
)

// bad lists ways in which a new binary fails before it takes over, one of each step of a start. TestHostilePlugins has
// the others.
var bad = []string{
	"exit", "hang", "garbage", "plain", "other-certificate", "wrong-kind", "unwell", "refuses", "exit-in-configure",
}

// load calls the plugin from several goroutines until it is stopped, and counts failures. Its calls end with the test.
type load struct {
	calls, failed atomic.Int64
	mu            sync.Mutex
	longest       time.Duration
	err           error
	stop          chan struct{}
	wg            sync.WaitGroup
}

// startLoad makes that many calls per second.
func startLoad(t *testing.T, s *supervisor.Supervisor, rate int) *load {
	const callers = 8
	l := &load{stop: make(chan struct{})}
	for range callers {
		l.wg.Go(func() {
			tick := time.NewTicker(callers * time.Second / time.Duration(rate))
			defer tick.Stop()
			for {
				select {
				case <-l.stop:
					return
				case <-tick.C:
				}
				began := time.Now()
				err := l.one(t.Context(), s)
				l.note(time.Since(began), err)
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

// one makes one call on a newly acquired generation, and repeats it where the host does.
func (l *load) one(ctx context.Context, s *supervisor.Supervisor) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	acquire := s.AcquireCall
	for {
		handle, err := acquire(ctx, "fixture")
		if err != nil {
			return err
		}
		_, err = storage.NewClient(handle.Conn).Attach(ctx, storage.Driver{ID: "d"}, storage.AttachRequest{})
		handle.Release()
		if !errors.Is(err, supervisor.ErrReplaced) {
			return err
		}
		acquire = s.Acquire
	}
}

func (l *load) note(took time.Duration, err error) {
	l.calls.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.longest = max(l.longest, took)
	if err != nil {
		l.failed.Add(1)
		l.err = err
	}
}

func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.wg.Wait()
}

// Half of the new binaries are bad, each in a different way. Callers notice nothing.
func TestSwapUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.StartTimeout = 5 * time.Second
	s := w.open()
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.State == supervisor.Running })
	l := startLoad(t, s, 400)
	for n, mode := range bad {
		serving := status(t, s, "fixture")
		w.put("fixture", mode, fmt.Sprintf("2.0.%d", n))
		refused := sumOf(t, filepath.Join(w.cfg.PluginDir, "fixture"))
		st := await(t, s, "fixture", func(st supervisor.Status) bool { return st.Refused[refused] != "" })
		if last := st.Swaps[len(st.Swaps)-1]; last.Error == "" || st.PID != serving.PID || last.To.SHA256 != refused {
			t.Errorf("%s took over: %+v", mode, last)
		}
		want := fmt.Sprintf("1.3.%d", n)
		w.put("fixture", "good", want)
		st = await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == want })
		if st.PID == serving.PID || st.Generation <= serving.Generation {
			t.Errorf("version %s has the process of the one before: %+v", want, st)
		}
	}
	l.end()
	w.settled(s)
	if l.failed.Load() != 0 || l.calls.Load() == 0 {
		t.Errorf("%d of %d calls failed, with %v", l.failed.Load(), l.calls.Load(), l.err)
	}
	if w.count(supervisor.EventSwapped) != len(bad) || w.count(supervisor.EventSwapFailed) != len(bad) ||
		status(t, s, "fixture").Restarts != 0 {
		t.Errorf("%d swaps, %d failed ones, want %d of each; %+v", w.count(supervisor.EventSwapped),
			w.count(supervisor.EventSwapFailed), len(bad), status(t, s, "fixture"))
	}
	if dirs, _ := os.ReadDir(w.cfg.DataDir + "/plugins/run"); len(dirs) != 1 {
		t.Errorf("%d folders of sockets are left, want one", len(dirs))
	}
	t.Logf("%d calls, the longest took %v", l.calls.Load(), l.longest)
}

// A call that began on the old process ends there, however long it takes.
func TestCallsEndWhereTheyBegan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	before := mustCall(t, s, "fixture", "")
	type answer struct {
		got map[string]string
		err error
	}
	long := make(chan answer, 1)
	end := filepath.Join(filepath.Dir(w.cfg.DataDir), "end")
	go func() {
		got, err := call(t, s, "fixture", "wait "+end)
		long <- answer{got, err}
	}()
	waitFor(t, "the call", func() bool { return strings.Contains(w.log.String(), "asleep") })
	w.put("fixture", "good", "1.3.0")
	st := await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
	if st.Swaps[0].Carried != 1 || st.Draining != 1 {
		t.Errorf("carried %d calls, %d drain: want one of each", st.Swaps[0].Carried, st.Draining)
	}
	if after := mustCall(t, s, "fixture", ""); after["pid"] == before["pid"] {
		t.Error("a new call went to the old process")
	}
	w.must(os.WriteFile(end, nil, 0o600))
	if a := <-long; a.err != nil || a.got["pid"] != before["pid"] {
		t.Errorf("the long call: %v, %v", a.got["pid"], a.err)
	}
	w.settled(s)
}

// The ways in which a file may be put into the plugin directory.
func TestHowABinaryArrives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := filepath.Join(w.cfg.PluginDir, "fixture")
	links := filepath.Join(filepath.Dir(w.cfg.PluginDir), "versions")
	if err := os.Mkdir(links, 0o755); err != nil {
		t.Fatal(err)
	}
	s := w.open()
	mustCall(t, s, "fixture", "")
	for n, put := range []func(data []byte){
		func(data []byte) { w.must(os.WriteFile(path, data, 0o755)) }, // over the old one, in place
		func(data []byte) { // a link is moved
			w.must(os.WriteFile(links+"/one", data, 0o755))
			w.must(os.Symlink(links+"/one", path+".tmp"))
			w.must(os.Rename(path+".tmp", path))
		},
		func(data []byte) { // what a link leads to is replaced
			w.must(os.WriteFile(links+"/one.tmp", data, 0o755))
			w.must(os.Rename(links+"/one.tmp", links+"/one"))
		},
		func(data []byte) { w.must(os.WriteFile(path+"_v1.4.3", data, 0o755)) }, // another version beside it
	} {
		want := fmt.Sprintf("1.4.%d", n)
		put(w.binary("good", want))
		await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == want })
	}
	// A lower version changes nothing; when the highest is removed, the lower one runs.
	w.must(os.WriteFile(path+"_v1.3.0", w.binary("good", "1.3.0"), 0o755))
	w.must(os.Remove(path + "_v1.4.3"))
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
}

// A version that fails soon after it has taken over is rolled back, and is not tried again.
func TestRollback(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]string{"it dies": "exit", "it becomes unhealthy": "unwell"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.open()
			mustCall(t, s, "fixture", "")
			good := status(t, s, "fixture").SHA256
			w.put("fixture", "good", "1.3.0")
			await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
			_, _ = call(t, s, "fixture", fail)
			st := await(t, s, "fixture", func(st supervisor.Status) bool {
				return st.Version == "1.2.3" &&
					st.State == supervisor.Running
			})
			if st.SHA256 != good || len(st.Refused) != 1 || !st.Swaps[len(st.Swaps)-1].Rollback {
				t.Errorf("status %+v", st)
			}
			waitFor(t, "the event", func() bool { return w.count(supervisor.EventRolledBack) == 1 })
			// It is tried again when it changes.
			w.put("fixture", "good", "1.3.1")
			await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.1" })
			w.settled(s)
		})
	}
}

func TestOperatorRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	mustCall(t, s, "fixture", "")
	first := status(t, s, "fixture").SHA256
	if _, err := s.Rollback(within(t), "fixture", "", nil); !errors.Is(err, supervisor.ErrNoCopy) {
		t.Errorf("rolled back to nothing: %v", err)
	}
	if st, err := s.Swap(within(t), "fixture", "", nil); err != nil || st.SHA256 != first || st.Generation != 1 {
		t.Errorf("swapped to itself: %v, %+v", err, st)
	}
	for n := range 8 { // whether the host has seen the file first or not
		want := fmt.Sprintf("1.2.%d", 10+n)
		w.put("fixture", "good", want)
		if st, err := s.Swap(within(t), "fixture", "", nil); err != nil || st.Version != want {
			t.Errorf("a swap right after the file has come: %v, %+v", err, st)
		}
	}
	w.install("fixture")
	if st, err := s.Swap(within(t), "fixture", "", nil); err != nil || st.SHA256 != first {
		t.Errorf("swapped back: %v, %+v", err, st)
	}
	if _, err := s.Swap(within(t), "nobody", "", nil); !errors.Is(err, supervisor.ErrUnknown) {
		t.Errorf("swapped an unknown plugin: %v", err)
	}
	w.put("fixture", "good", "1.3.0")
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
	st, err := s.Rollback(within(t), "fixture", "", nil)
	if err != nil || st.SHA256 != first {
		t.Errorf("rolled back: %v, %+v", err, st)
	}
	if st, err = s.Swap(within(t), "fixture", "", nil); err != nil || st.Version != "1.3.0" {
		t.Errorf("swapped to what was refused: %v, %+v", err, st)
	}
	if st, err = s.Pin(within(t), "fixture", first); err != nil || st.SHA256 != first || st.Pinned != first {
		t.Errorf("pinned: %v, %+v", err, st)
	}
	w.put("fixture", "good", "1.5.0")
	if _, err := s.Swap(within(t), "fixture", "", nil); !errors.Is(err, supervisor.ErrNoSwap) {
		t.Errorf("a pinned plugin was swapped: %v", err)
	}
	if _, err := s.Pin(within(t), "fixture", strings.Repeat("0", 64)); !errors.Is(err, supervisor.ErrNoCopy) {
		t.Errorf("pinned to nothing: %v", err)
	}
	if st, err = s.Unpin(within(t), "fixture"); err != nil || st.Version != "1.5.0" || st.Pinned != "" {
		t.Errorf("unpinned: %v, %+v", err, st)
	}
	w.settled(s)
}

// A swap of a plugin that is down waits until it serves, or explains why it does not. With a checksum it tries only
// that binary again, and nothing else that was refused.
func TestSwapToOneBinary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put("fixture", "exit", "1.0.0")
	s := w.open()
	if st, err := s.Swap(within(t), "fixture", "", nil); err == nil || !strings.Contains(err.Error(), "the disk is on fire") {
		t.Errorf("swapped to a program that ends: %v, %+v", err, st)
	}
	w.put("fixture", "good", "1.0.0")
	if st, err := s.Swap(within(t), "fixture", sumOf(t, w.path("fixture")), nil); err != nil || st.Version != "1.0.0" {
		t.Errorf("swapped while it was down: %v, %+v", err, st)
	}
	w.put("fixture_v3.0.0", "good", "3.0.0")
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "3.0.0" })
	_, err := s.Rollback(within(t), "fixture", "", nil)
	w.must(err)
	w.put("fixture_v2.0.0", "good", "2.0.0")
	second := sumOf(t, w.path("fixture_v2.0.0"))
	if st, err := s.Swap(within(t), "fixture", second, nil); err != nil || st.SHA256 != second || len(st.Refused) != 1 {
		t.Errorf("swapped to one binary: %v, %+v", err, st)
	}
	w.settled(s)
}

// Handle.Retired reports that another process has taken over.
func TestHandleReportsASwap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	handle, err := s.Acquire(within(t), "fixture")
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Release()
	w.put("fixture", "good", "1.3.0")
	select {
	case <-handle.Retired:
	case <-within(t).Done():
		t.Fatal("nobody said so")
	}
	ctx := within(t)
	if _, err := storage.NewClient(handle.Conn).Attach(ctx, storage.Driver{}, storage.AttachRequest{}); err != nil {
		t.Errorf("a call on a generation that is still acquired: %v", err)
	}
}

// A plugin that is added later is started automatically.
func TestNewPluginIsStarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	mustCall(t, s, "fixture", "")
	w.put("second", "good", "3.0.0")
	await(t, s, "second", func(st supervisor.Status) bool { return st.Version == "3.0.0" })
}

// put puts a fixture that behaves as mode says into the plugin directory, as an operator would.
func (w *world) put(name, mode, version string) {
	w.t.Helper()
	path := filepath.Join(w.cfg.PluginDir, name)
	w.must(os.WriteFile(path+".tmp", append(w.binary(mode, version), named(name)...), 0o755))
	w.must(os.Rename(path+".tmp", path))
}

// binary returns the fixture with a last line that says how it behaves.
func (w *world) binary(mode, version string) []byte {
	w.t.Helper()
	data, err := os.ReadFile(fixture(w.t, "plugin"))
	w.must(err)
	return append(slices.Clip(data), "\n#fixture "+mode+" "+version+"\n"...)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// A process is started only once its copy is on the disk.
func TestCopyThatIsNotOnTheDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := supervisor.New(w.cfg)
	var broken atomic.Bool
	s.SetSync(func(string) error {
		if broken.Load() {
			return syscall.EIO
		}
		return nil
	})
	problem := func(st supervisor.Status) bool {
		return strings.Contains(st.LastError, "keep a copy of "+w.path("fixture")+": "+syscall.EIO.Error())
	}
	broken.Store(true)
	w.must(s.Open(t.Context()))
	t.Cleanup(func() { _ = s.Close() })
	if st := await(t, s, "fixture", problem); st.State == supervisor.Running || st.Generation != 0 {
		t.Errorf("it serves: %+v", st)
	}
	broken.Store(false)
	first := await(t, s, "fixture", func(st supervisor.Status) bool { return st.State == supervisor.Running })

	broken.Store(true)
	w.put("fixture", "good", "2.0.0")
	if st := await(t, s, "fixture", problem); st.PID != first.PID || st.State != supervisor.Running {
		t.Errorf("%+v serves, not %+v", st, first)
	}
	mustCall(t, s, "fixture", "")
	broken.Store(false) // it says nothing about the binary, which is tried again
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "2.0.0" })
}
