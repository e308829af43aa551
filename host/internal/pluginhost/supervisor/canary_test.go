package supervisor_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/storage"
)

// try makes one call that a canary may get, and returns the pid that answered.
func try(t *testing.T, s *supervisor.Supervisor, do string) (pid string, err error) {
	t.Helper()
	ctx := within(t)
	handle, err := s.AcquireCall(ctx, "fixture")
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Release()
	answer, err := storage.NewClient(handle.Conn).Attach(ctx, storage.Driver{ID: "d"},
		storage.AttachRequest{Volume: storage.Volume{Name: do}})
	return answer["pid"], err
}

// pinned opens a supervisor whose plugin is pinned, with another binary in the plugin directory.
func (w *world) pinned(mode string) *supervisor.Supervisor {
	w.t.Helper()
	s := w.open()
	mustCall(w.t, s, "fixture", "")
	if _, err := s.Pin(within(w.t), "fixture", ""); err != nil {
		w.t.Fatal(err)
	}
	w.put("fixture", mode, "1.3.0")
	return s
}

func (w *world) canary(s *supervisor.Supervisor, percent int) supervisor.Status {
	w.t.Helper()
	st, err := s.Canary(within(w.t), "fixture", percent)
	if err != nil || st.Canary == nil {
		w.t.Fatalf("a canary: %v, %+v", err, st)
	}
	return st
}

// A canary gets its part of the calls, but none of the streams, until it is promoted. It serves then, the pin moves to
// it, and it is on probation: if it fails, both the binary and the pin before it are back.
func TestCanary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.pinned("good")
	first := status(t, s, "fixture")
	st := w.canary(s, 20)
	c := st.Canary
	if c.Version != "1.3.0" || c.Percent != 20 || c.PID == st.PID || st.PID != first.PID || st.Pinned != first.SHA256 ||
		st.Refused[c.SHA256] == "" {
		t.Fatalf("a canary: %+v of %+v", c, st)
	}
	by := map[string]int{}
	for range 400 {
		pid, err := try(t, s, "")
		w.must(err)
		by[pid]++
		mustCall(t, s, "fixture", "")
	}
	st = status(t, s, "fixture")
	if n := by[strconv.Itoa(c.PID)]; n < 30 || n > 130 || by[strconv.Itoa(first.PID)] != 400-n || st.Canary.Calls != n ||
		st.Canary.Serving.Calls != 800-n {
		t.Errorf("of 400 calls, %v were answered by the canary %d; %+v", by, c.PID, st.Canary)
	}
	if _, err := s.Swap(within(t), "fixture", "", nil); !errors.Is(err, supervisor.ErrCanary) {
		t.Errorf("swapped beside a canary: %v", err)
	}
	if _, err := s.Canary(within(t), "fixture", 1); !errors.Is(err, supervisor.ErrCanary) {
		t.Errorf("a second canary: %v", err)
	}
	l := startLoad(t, s, 200)
	seen := make(chan supervisor.Status)
	go func() {
		st := s.Status()[0]
		for ; st.Canary != nil; st = s.Status()[0] { // whatever is seen between two changes
		}
		seen <- st
	}()
	st, err := s.Promote(within(t), "fixture", nil)
	if st := <-seen; len(st.Swaps) == 0 || st.Generation != c.Generation {
		t.Errorf("there is no canary any more, and it does not serve: %+v", st)
	}
	if err != nil || st.PID != c.PID || st.Canary != nil || st.Pinned != c.SHA256 || st.LastGood != first.SHA256 ||
		len(st.Refused) != 0 || st.Swaps[len(st.Swaps)-1].Canary != 20 {
		t.Fatalf("promoted: %v, %+v", err, st)
	}
	n := by[strconv.Itoa(c.PID)]
	if last := st.Swaps[len(st.Swaps)-1]; last.To.Calls < n || last.From.Calls < 800-n ||
		last.To.FailedCalls+last.From.FailedCalls != 0 {
		t.Errorf("of 400 calls %d were answered by the canary, and the swap says %+v", n, last)
	}
	if _, err := s.Promote(within(t), "fixture", nil); !errors.Is(err, supervisor.ErrCanary) {
		t.Errorf("promoted twice: %v", err)
	}
	if _, err := s.Canary(within(t), "fixture", 1); !errors.Is(err, supervisor.ErrNoSwap) {
		t.Errorf("a canary of what serves: %v", err)
	}
	answered := l.calls.Load()
	waitFor(t, "calls", func() bool { return l.calls.Load() > answered+20 })
	l.end()
	w.settled(s)
	if l.failed.Load() != 0 || w.count(supervisor.EventPromoted) != 1 || w.count(supervisor.EventCanaryEnded) != 0 {
		t.Errorf("%d calls failed, with %v", l.failed.Load(), l.err)
	}
	if _, err := call(t, s, "fixture", "exit"); err == nil {
		t.Error("a process that has ended has answered")
	}
	st = await(t, s, "fixture", func(st supervisor.Status) bool {
		return st.Version == "1.2.3" && st.State == supervisor.Running
	})
	if st.Pinned != first.SHA256 || st.Refused[c.SHA256] == "" {
		t.Errorf("rolled back: %+v", st)
	}
}

// A canary that fails its calls, ends, or is unhealthy is ended, and no caller notices.
func TestABadCanaryIsEnded(t *testing.T) {
	t.Parallel()
	for mode, why := range map[string]string{
		"fails":           " failed (0 of ",
		"panics":          " failed (0 of ",
		"has-no-calls":    " failed (0 of ",
		"good":            "the process ended",
		"unwell-in-calls": "it is unhealthy",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.pinned(mode)
			first := status(t, s, "fixture")
			l := startLoad(t, s, 200)
			waitFor(t, "calls", func() bool { return l.calls.Load() > 20 })
			if mode == "good" {
				l.end() // repeating what a process did not answer is for others
			}
			c := w.canary(s, 50).Canary
			if mode == "good" {
				w.must(unix.Kill(c.PID, unix.SIGKILL))
				st := status(t, s, "fixture")
				for ; st.Canary != nil; st = status(t, s, "fixture") { // whatever is seen between two changes
				}
				if len(st.Swaps) == 0 {
					t.Errorf("the canary is gone, and nothing says why: %+v", st)
				}
			}
			st := await(t, s, "fixture", func(st supervisor.Status) bool { return st.Canary == nil && st.Draining == 0 })
			if mode == "good" {
				l = startLoad(t, s, 200)
			}
			answered := l.calls.Load()
			waitFor(t, "calls after it", func() bool { return l.calls.Load() > answered+20 })
			l.end()
			w.settled(s)
			if n := l.failed.Load(); n != 0 {
				t.Errorf("%d calls failed, with %v", n, l.err)
			}
			last := st.Swaps[len(st.Swaps)-1]
			if st.PID != first.PID || st.Pinned != first.SHA256 || st.Restarts != 0 || !strings.Contains(last.Error, why) ||
				!strings.Contains(last.Error, "50% of the calls") || last.Canary != 50 || last.To.Version != "1.3.0" ||
				st.Refused[c.SHA256] != last.Error || w.count(supervisor.EventCanaryEnded) != 1 {
				t.Errorf("after the canary: %+v", st)
			}
			if strings.Contains(why, " failed ") && (last.To.FailedCalls < 3 || last.To.Calls < last.To.FailedCalls) ||
				last.From.FailedCalls != 0 {
				t.Errorf("the swap does not say how many calls failed: %+v", last)
			}
		})
	}
}

// What fails as often in the process that serves is not the canary's fault. Its failed calls may be repeated.
func TestFailuresBesideACanary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.pinned("good")
	for range 5 {
		if _, err := call(t, s, "fixture", "fail"); grpcstatus.Code(err) != codes.Internal {
			t.Fatal(err)
		}
	}
	w.canary(s, 50)
	repeated := 0
	for range 50 {
		_, err := try(t, s, "fail")
		if grpcstatus.Code(err) != codes.Internal {
			t.Fatal(err)
		}
		if errors.Is(err, supervisor.ErrReplaced) {
			repeated++
		}
	}
	st, err := s.Rollback(within(t), "fixture", "", nil)
	if repeated < 5 || err != nil || st.Canary != nil || w.count(supervisor.EventCanaryEnded) != 1 ||
		!strings.Contains(st.Swaps[len(st.Swaps)-1].Error, "by an operator") {
		t.Errorf("%d calls may be repeated; rolled back: %v, %+v", repeated, err, st)
	}
	// The calls before the canary are not counted.
	if last := st.Swaps[len(st.Swaps)-1]; last.To.Calls != repeated || last.To.FailedCalls != repeated ||
		last.From.Calls != 50-repeated || last.From.FailedCalls != 50-repeated {
		t.Errorf("of 50 calls, %d of the canary, all failed: %+v", repeated, last)
	}
}

// A binary that is a canary does not serve by itself: not when the plugin is unpinned, and not under the next host.
func TestACanaryServesOnlyWhenPromoted(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"closed", "killed"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.StopPlugins = false
			s := w.pinned("good")
			first := status(t, s, "fixture")
			var pid int
			if end == "closed" {
				pid = w.canary(s, 50).Canary.PID
				st, err := s.Unpin(within(t), "fixture")
				if err != nil || st.PID != first.PID || st.Canary == nil {
					t.Fatalf("unpinned: %v, %+v", err, st)
				}
				w.must(s.Close())
			} else {
				w.must(s.Close())
				w.hostEnv = []string{"HOST_CANARY=50"}
				h := w.host()
				if serves := h.up(); serves != first.PID {
					t.Fatalf("%d serves, not %d", serves, first.PID)
				}
				pid = h.up()
				h.kill()
				if !alive(pid) {
					t.Error("the canary died with its host")
				}
			}
			w.cfg.StopPlugins = true
			s = w.open()
			mustCall(t, s, "fixture", "")
			waitFor(t, "the end of the canary", func() bool { return !alive(pid) })
			waitFor(t, "the event", func() bool { return w.count(supervisor.EventCanaryEnded) == 1 })
			w.settled(s)
			st := status(t, s, "fixture")
			if last := st.Swaps[len(st.Swaps)-1]; st.PID != first.PID || st.Canary != nil || last.Canary != 50 ||
				last.Error == "" || st.Refused[last.To.SHA256] == "" {
				t.Errorf("after the canary: %+v", st)
			}
			if st, err := s.Pin(within(t), "fixture", first.SHA256); err != nil || st.PID != first.PID {
				t.Errorf("pinned: %v, %+v", err, st)
			}
		})
	}
}

// A canary that has answered nothing is not promoted. The error names the commands with which its binary serves all the
// same.
func TestABinaryServesWithoutBeingPromoted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.pinned("good")
	w.canary(s, 50)
	_, err := s.Promote(within(t), "fixture", nil)
	if !errors.Is(err, supervisor.ErrCanary) || !strings.HasSuffix(err.Error(),
		"pannier plugin rollback fixture && pannier plugin unpin fixture && pannier plugin swap fixture") {
		t.Errorf("promoted: %v", err)
	}
	_, err = s.Rollback(within(t), "fixture", "", nil)
	w.must(err)
	_, err = s.Unpin(within(t), "fixture")
	w.must(err)
	if st, err := s.Swap(within(t), "fixture", "", nil); err != nil || st.Version != "1.3.0" {
		t.Errorf("swapped: %v, %+v", err, st)
	}
	w.settled(s)
}

// When another binary takes over, or the process that serves is lost, there is no canary any more.
func TestTheEndOfWhatServesEndsTheCanary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.pinned("good")
	w.canary(s, 50)
	if st, err := s.Restart(within(t), "fixture", nil); err != nil || st.Canary != nil || st.Version != "1.2.3" {
		t.Errorf("restarted: %v, %+v", err, st)
	}
	w.canary(s, 50)
	_, _ = call(t, s, "fixture", "exit")
	st := await(t, s, "fixture", func(st supervisor.Status) bool {
		return st.Restarts == 1 && st.State == supervisor.Running
	})
	if st.Canary != nil || st.Version != "1.2.3" {
		t.Errorf("restarted: %+v", st)
	}
	w.settled(s)
	if n := w.count(supervisor.EventCanaryEnded); n != 2 {
		t.Errorf("%d events, want 2", n)
	}
}

// The calls of a canary that hangs are given up when it is ended, and may be repeated.
func TestAHungCanaryHoldsNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.pinned("hangs-in-calls")
	w.canary(s, 99)
	hung := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for {
			handle, err := s.AcquireCall(ctx, "fixture")
			if err != nil {
				hung <- err
				return
			}
			_, err = storage.NewClient(handle.Conn).Attach(ctx, storage.Driver{ID: "d"}, storage.AttachRequest{})
			handle.Release()
			if err != nil {
				hung <- err
				return
			}
		}
	}()
	waitFor(t, "the call", func() bool { return status(t, s, "fixture").Canary.Users == 1 })
	grace := time.Duration(0)
	if _, err := s.Rollback(within(t), "fixture", "", &grace); err != nil {
		t.Error(err)
	}
	if err := <-hung; !errors.Is(err, supervisor.ErrReplaced) {
		t.Errorf("a call that hung: %v", err)
	}
	w.settled(s)
}
