package supervisor_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/sdk/wire"
	"github.com/pannier/pannier/test/lib/testbin"
)

// told collects the delivered events in order.
type told struct {
	t      *testing.T
	mu     sync.Mutex
	events []supervisor.PluginEvent
}

func (l *told) add(e supervisor.PluginEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

func (l *told) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.events)
}

// check checks that each process's events were delivered in order and completely up to the last one, with at most
// the allowed number of repetitions. It returns the number of processes.
func (l *told) check(repeats int) (processes int) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	last := map[uint64]supervisor.PluginEvent{}
	for _, e := range l.events {
		before := last[e.Generation]
		switch {
		case e.Seq == before.Seq && e.ID() == before.ID() && repeats > 0:
			repeats--
			continue
		case e.Seq != before.Seq+1 || e.Lost != 0:
			l.t.Errorf("generation %d: event %d, with %d lost, comes after %d", e.Generation, e.Seq, e.Lost, before.Seq)
		case before.Type == "last":
			l.t.Errorf("generation %d: event %d comes after the last one", e.Generation, e.Seq)
		}
		if want := "tick"; e.Type != want && e.Type != "last" || e.Kind != storage.Kind || e.Plugin != "fixture" ||
			time.Since(e.Time) > time.Minute {
			l.t.Errorf("event %+v", e)
		}
		if n, _ := strconv.ParseUint(e.Details["n"], 10, 64); e.Type == "tick" && n != e.Seq || e.Type == "last" &&
			n != e.Seq-1 {
			l.t.Errorf("generation %d: event %d, of type %s, says n = %d", e.Generation, e.Seq, e.Type, n)
		}
		last[e.Generation] = e
	}
	for number, e := range last {
		if e.Type != "last" {
			l.t.Errorf("generation %d: the last event is missing, got up to %d", number, e.Seq)
		}
	}
	return len(last)
}

// newEmitter returns a world whose plugin emits events at that rate, and the collector of its events. The plugin
// keeps about the last thousand, so the host must not be away for longer than these take.
func newEmitter(t *testing.T, rate int) (*world, *told) {
	t.Helper()
	w := newWorld(t)
	w.putEmitter("")
	w.configure(supervisor.Plugin{Name: "fixture", Args: []string{strconv.Itoa(rate)}})
	w.cfg.StopTimeout = time.Minute // it tells of its end
	l := &told{t: t}
	w.cfg.OnPluginEvent = l.add
	return w, l
}

// putEmitter replaces the fixture by the emitter, with a different ending so that its checksum differs.
func (w *world) putEmitter(end string) {
	w.t.Helper()
	data, err := os.ReadFile(testbin.BuildDir(w.t, filepath.Join(testbin.Root(), "sdk/testdata/emitter")))
	w.must(err)
	w.putFile(append(data, end...))
}

func (w *world) putFile(data []byte) {
	w.t.Helper()
	path := filepath.Join(w.cfg.PluginDir, "fixture")
	w.must(os.WriteFile(path+".tmp", data, 0o755))
	w.must(os.Rename(path+".tmp", path))
}

// emit makes the plugin emit events in a call.
func emit(t *testing.T, s *supervisor.Supervisor, n int) {
	t.Helper()
	handle, err := s.Acquire(within(t), "fixture")
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Release()
	if err := storage.NewClient(handle.Conn).Publish(within(t), storage.Driver{ID: "d"},
		storage.PublishRequest{TargetPath: strconv.Itoa(n)}); err != nil {
		t.Fatal(err)
	}
}

// Each process delivers all its events until its end, including one that is replaced.
func TestEventsOfSwapsUnderLoad(t *testing.T) {
	w, l := newEmitter(t, 100)
	s := w.open()
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.State == supervisor.Running })
	const swaps = 5
	for n := range swaps {
		seen := l.count()
		waitFor(t, "events", func() bool { return l.count() > seen+100 })
		w.putEmitter(strconv.Itoa(n))
		await(t, s, "fixture", func(st supervisor.Status) bool { return len(st.Swaps) == n+1 && st.Swaps[n].Error == "" })
	}
	w.settled(s)
	s.Close()
	if n := l.check(0); n != swaps+1 {
		t.Errorf("events of %d processes, want %d", n, swaps+1)
	}
	if strings.Contains(w.log.String(), "has not taken") {
		t.Error("a process waited for what it had told to be acknowledged")
	}
	if left, _ := filepath.Glob(w.cfg.DataDir + "/plugins/events/*"); len(left) != 0 {
		t.Errorf("left: %s", left)
	}
	t.Logf("%d events", l.count())
}

// Whenever a host is killed, the next one continues with the next event.
func TestEventsOutliveAKilledHost(t *testing.T) {
	t.Parallel()
	w, l := newEmitter(t, 20)
	w.cfg.StopPlugins = false
	dir := filepath.Dir(w.cfg.DataDir)
	file, points := filepath.Join(dir, "events.json"), filepath.Join(dir, "points")
	w.hostProgram = testbin.BuildTags(t, "host/internal/pluginhost/supervisor/testdata/host", "failpoint")
	w.hostEnv = []string{"HOST_EVENTS=" + file, "PANNIER_FAILPOINT=" + points}

	repeats := 0
	for n, point := range []string{"received", "handled", "noted", "received", "handled", "noted"} {
		if point == "handled" { // the one instant at which nobody can know
			repeats++
		}
		w.must(os.WriteFile(points, fmt.Appendf(nil, "event:%s#%d", point, 1+n*7), 0o600))
		h := w.host()
		waitFor(t, "the host's end at "+point, func() bool { return !alive(h.cmd.Process.Pid) })
		h.kill()
	}
	for n := range 8 {
		h := w.host()
		h.up()
		time.Sleep(time.Duration(5*n) * time.Millisecond) // not to wait for something: to be anywhere
		h.kill()
	}
	repeats += 8 // at most, where one was killed in that very instant
	data, err := os.ReadFile(file)
	w.must(err)
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var e supervisor.PluginEvent
		w.must(json.Unmarshal(lines.Bytes(), &e))
		l.add(e)
	}
	w.cfg.StopPlugins = true
	s := w.open()
	mustReady(t, s)
	s.Close()
	if n := l.check(repeats); n != 1 {
		t.Errorf("events of %d processes, want one", n)
	}
	t.Logf("%d events, %d of them before the last host", l.count(), bytes.Count(data, []byte{'\n'}))
}

// A process that was replaced just when the host was killed still delivers its events.
func TestEventsOfAHostKilledInASwap(t *testing.T) {
	t.Parallel()
	w, l := newEmitter(t, 100)
	w.cfg.StopPlugins = false
	dir := filepath.Dir(w.cfg.DataDir)
	file, points := filepath.Join(dir, "events.json"), filepath.Join(dir, "points")
	w.hostProgram = testbin.BuildTags(t, "host/internal/pluginhost/supervisor/testdata/host", "failpoint")
	w.hostEnv = []string{"HOST_EVENTS=" + file, "PANNIER_FAILPOINT=" + points}
	w.must(os.WriteFile(points, []byte("swap:moved"), 0o600))
	h := w.host()
	h.up()
	waitFor(t, "events", func() bool { data, _ := os.ReadFile(file); return len(data) > 0 })
	w.putEmitter("another")
	waitFor(t, "the host's end", func() bool { return !alive(h.cmd.Process.Pid) })
	h.kill()
	data, err := os.ReadFile(file)
	w.must(err)
	for line := range strings.Lines(string(data)) {
		var e supervisor.PluginEvent
		w.must(json.Unmarshal([]byte(line), &e))
		l.add(e)
	}
	w.cfg.StopPlugins = true
	s := w.open()
	mustReady(t, s)
	w.settled(s)
	s.Close()
	if n := l.check(1); n != 2 {
		t.Errorf("events of %d processes, want two", n)
	}
}

// Dropped events are counted, and the newest are delivered.
func TestEventsThatNobodyTook(t *testing.T) {
	t.Parallel()
	w, l := newEmitter(t, 0)
	held := make(chan struct{})
	w.cfg.OnPluginEvent = func(e supervisor.PluginEvent) {
		<-held
		l.add(e)
	}
	s := w.open()
	const emitted = 5000
	for range emitted / 100 {
		emit(t, s, 100)
	}
	close(held)
	s.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	total, newest := uint64(len(l.events)), l.events[len(l.events)-1]
	for _, e := range l.events {
		total += e.Lost
	}
	if total != emitted+1 || newest.Type != "last" || len(l.events) < 1000 || len(l.events) == emitted+1 {
		t.Errorf("%d were handed over, with those lost %d, want %d; the newest is %+v", len(l.events), total, emitted+1,
			newest)
	}
}

// Events that a process had sent before it died are delivered, even to a slow receiver.
func TestEventsOfAPluginThatDies(t *testing.T) {
	const emitted, tries = 50, 5
	for range tries { // it may die before it has sent anything
		w, l := newEmitter(t, 0)
		held, first := make(chan struct{}), make(chan struct{}, 1)
		w.cfg.OnPluginEvent = func(e supervisor.PluginEvent) {
			select {
			case first <- struct{}{}:
			default:
			}
			<-held
			l.add(e)
		}
		s := w.open()
		emit(t, s, 1)
		<-first
		emit(t, s, emitted)
		time.Sleep(50 * time.Millisecond) // not to wait for something: it most likely sends them
		killProcess(t, status(t, s, "fixture").PID)
		await(t, s, "fixture", func(st supervisor.Status) bool { return st.Restarts == 1 })
		time.Sleep(50 * time.Millisecond) // not to wait for something: the dead process is cleared away
		close(held)
		s.Close()
		l.mu.Lock()
		n := 0
		for _, e := range l.events {
			if e.Generation == 1 {
				n++
			}
		}
		l.mu.Unlock()
		if n == emitted+1 {
			return
		}
	}
	t.Errorf("in none of %d times all events were told", tries)
}

// A plugin that speaks a next version of the wire, too, is used, and found again, with this one.
func TestPluginOfANextVersionOfTheWire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.StopPlugins = false
	w.put("fixture", "next-wire", "1.0.0")
	s := w.open()
	mustReady(t, s)
	before := status(t, s, "fixture").PID
	s.Close()
	if got := recordedWire(t, w); got != wire.Version {
		t.Errorf("the record has version %d of the wire", got)
	}
	w.cfg.StopPlugins = true
	s = w.open()
	mustReady(t, s)
	if st := status(t, s, "fixture"); st.PID != before {
		t.Errorf("it was not found again: %+v", st)
	}
}

// recordedWire returns the wire version of the serving process.
func recordedWire(t *testing.T, w *world) int {
	t.Helper()
	data, err := os.ReadFile(w.cfg.DataDir + "/plugins/fixture.json")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var rec struct {
		Serving int
		Runs    []struct{ Number, Protocol int }
	}
	w.must(json.Unmarshal(data, &rec))
	for _, run := range rec.Runs {
		if run.Number == rec.Serving {
			return run.Protocol
		}
	}
	t.Fatalf("no run serves in %s", data)
	return 0
}

func mustReady(t *testing.T, s *supervisor.Supervisor) {
	t.Helper()
	handle, err := s.Acquire(within(t), "fixture")
	if err != nil {
		t.Fatal(err)
	}
	handle.Release()
}

// A plugin without the SDK ends with gRPC's GracefulStop, which waits for the streams that go-plugin's client holds:
// the host hangs up.
func TestPlainPluginEndsByItself(t *testing.T) {
	w := newWorld(t)
	w.cfg.StopTimeout = 2 * time.Minute
	data, err := os.ReadFile(testbin.BuildDir(t, filepath.Join(testbin.Root(), "examples/plugins/plain")))
	w.must(err)
	w.putFile(data)
	s := w.open()
	first := await(t, s, "fixture", func(st supervisor.Status) bool { return st.State == supervisor.Running })
	w.putFile(append(data, "another"...))
	await(t, s, "fixture", func(st supervisor.Status) bool {
		return st.State == supervisor.Running && st.PID != first.PID && st.Draining == 0
	})
	w.must(s.Close())
	if log := w.log.String(); strings.Contains(log, "are cut") || strings.Count(log, "reason=\"the host asked for it\"") != 2 {
		t.Errorf("the processes did not end by themselves:\n%s", log)
	}
}
