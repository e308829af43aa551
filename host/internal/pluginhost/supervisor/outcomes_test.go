package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/storage"
)

// A generation that comes up well and then fails its calls is gone after three of them. The other calls are repeated
// on the one that comes back.
func TestFailingGenerationIsRolledBack(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"fails", "panics", "has-no-calls"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.open()
			await(t, s, "fixture", func(st supervisor.Status) bool { return st.State == supervisor.Running })
			l := startLoad(t, s, 200)
			waitFor(t, "calls", func() bool { return l.calls.Load() > 20 })
			w.put("fixture", mode, "2.0.0")
			bad := sumOf(t, w.cfg.PluginDir+"/fixture")
			st := await(t, s, "fixture", func(st supervisor.Status) bool {
				return st.Refused[bad] != "" && st.Version == "1.2.3" && st.State == supervisor.Running
			})
			answered := l.calls.Load()
			waitFor(t, "calls after it", func() bool { return l.calls.Load() > answered+20 })
			l.end()
			w.settled(s)
			if n := l.failed.Load(); n >= 3 {
				t.Errorf("%d calls failed, with %v", n, l.err)
			}
			last := st.Swaps[len(st.Swaps)-1]
			if !last.Rollback || last.From.Version != "2.0.0" || !strings.Contains(last.Why, " calls of ") ||
				!strings.Contains(last.Why, " failed (0 of ") || last.Why != st.Refused[bad] ||
				last.From.FailedCalls < 3 || last.From.Calls < last.From.FailedCalls {
				t.Errorf("the swap back does not say why, with numbers: %+v", last)
			}
			if st := status(t, s, "fixture"); st.Degraded != "" || st.Restarts != 0 ||
				w.count(supervisor.EventRolledBack) != 1 || w.count(supervisor.EventDegraded) != 0 {
				t.Errorf("%d events of a rollback, want one; %+v", w.count(supervisor.EventRolledBack), st)
			}
		})
	}
}

// A call that hangs counts when its caller gives up.
func TestHangingGenerationIsRolledBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	mustCall(t, s, "fixture", "")
	w.put("fixture", "hangs-in-calls", "2.0.0")
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "2.0.0" })
	for range 3 {
		handle, err := s.Acquire(within(t), "fixture")
		w.must(err)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err = storage.NewClient(handle.Conn).Attach(ctx, storage.Driver{ID: "d"}, storage.AttachRequest{})
		cancel()
		handle.Release()
		if grpcstatus.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("a call that hangs: %v", err)
		}
	}
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.2.3" })
}

// Calls that hang count before their callers give up: the binary is replaced, and the calls are repeated.
func TestHangingCallsAreNoticed(t *testing.T) {
	t.Parallel()
	for _, canary := range []bool{false, true} {
		t.Run(fmt.Sprintf("canary %t", canary), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.open()
			l := startLoad(t, s, 200)
			waitFor(t, "calls", func() bool { return l.calls.Load() > 20 })
			if canary {
				_, err := s.Pin(within(t), "fixture", "")
				w.must(err)
			}
			w.put("fixture", "hangs-in-calls", "2.0.0")
			bad := sumOf(t, w.cfg.PluginDir+"/fixture")
			if canary {
				_, err := s.Canary(within(t), "fixture", 50)
				w.must(err)
				if _, err := s.Promote(within(t), "fixture", nil); !errors.Is(err, supervisor.ErrCanary) ||
					!strings.Contains(err.Error(), "answered no call") {
					t.Errorf("a canary that has answered nothing was promoted: %v", err)
				}
			}
			st := await(t, s, "fixture", func(st supervisor.Status) bool {
				return strings.Contains(st.Refused[bad], "not been answered") && st.Version == "1.2.3" &&
					st.State == supervisor.Running && st.Canary == nil
			})
			answered := l.calls.Load()
			waitFor(t, "calls after it", func() bool { return l.calls.Load() > answered+20 })
			l.end()
			w.settled(s)
			if n := l.failed.Load(); n > 0 {
				t.Errorf("%d calls failed, with %v", n, l.err)
			}
			if now := status(t, s, "fixture"); now.Degraded != "" || w.count(supervisor.EventDegraded) != 0 {
				t.Errorf("the good binary is called degraded: %+v; it was %+v", now, st)
			}
		})
	}
}

// A call that is repeated when its caller has no time left counts against nobody.
func TestCallsWithoutTimeAreNotCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	for range 10 {
		mustCall(t, s, "fixture", "sleep 50ms")
	}
	w.put("fixture", "good", "2.0.0")
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "2.0.0" })
	before := status(t, s, "fixture").Calls
	for _, left := range []time.Duration{-time.Second, 5 * time.Millisecond, 5 * time.Millisecond, 5 * time.Millisecond} {
		handle, err := s.Acquire(within(t), "fixture")
		w.must(err)
		ctx, cancel := context.WithTimeout(t.Context(), left)
		_, err = storage.NewClient(handle.Conn).Attach(ctx, storage.Driver{ID: "d"},
			storage.AttachRequest{Volume: storage.Volume{Name: "sleep 10s"}})
		cancel()
		handle.Release()
		if grpcstatus.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("a call with %v left: %v", left, err)
		}
	}
	if st := status(t, s, "fixture"); st.Calls != before || st.FailedCalls != 0 || st.Version != "2.0.0" {
		t.Errorf("calls that had no time are counted: %+v", st)
	}
}

// What fails as often in the generation before is not the new one's fault.
func TestFailuresOfBothGenerations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	for range 2 {
		mustCall(t, s, "fixture", "")
		for range 4 {
			if _, err := call(t, s, "fixture", "fail"); grpcstatus.Code(err) != codes.Internal {
				t.Fatal(err)
			}
		}
		if v := status(t, s, "fixture").Version; v == "1.2.3" {
			w.put("fixture", "good", "1.3.0")
			await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
		}
	}
	if st := status(t, s, "fixture"); st.Version != "1.3.0" || st.Degraded != "" || st.Calls != 5 || st.FailedCalls != 4 {
		t.Errorf("the new generation is %+v", st)
	}
}

// After the window, and without one, a generation that fails its calls stays, and the host says so, until they
// succeed again.
func TestDegraded(t *testing.T) {
	t.Parallel()
	for _, window := range []time.Duration{-1, time.Nanosecond} {
		t.Run(fmt.Sprint(window), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.configure(supervisor.Plugin{Name: "fixture", RollbackWindow: window})
			s := w.open()
			mustCall(t, s, "fixture", "")
			w.put("fixture", "good", "1.3.0")
			await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
			for n := range 4 {
				_, err := call(t, s, "fixture", "fail")
				if grpcstatus.Code(err) != codes.Internal || errors.Is(err, supervisor.ErrReplaced) {
					t.Fatalf("call %d: %v", n, err)
				}
			}
			waitFor(t, "the event", func() bool { return w.count(supervisor.EventDegraded) == 1 })
			st := status(t, s, "fixture")
			if st.Version != "1.3.0" || !strings.HasPrefix(st.Degraded, "4 of the last 4 calls of Attach failed (0 of 1 in the "+
				"generation before), the last with Internal: as it was told") {
				t.Errorf("degraded: %+v", st)
			}
			for range 5 {
				mustCall(t, s, "fixture", "")
			}
			waitFor(t, "the end of it", func() bool { return w.count(supervisor.EventHealthy) == 1 })
			if st := status(t, s, "fixture"); st.Degraded != "" {
				t.Errorf("it is still degraded: %s", st.Degraded)
			}
		})
	}
}

// A driver's errors are passed on by a plugin that works.
func TestRelayedErrorsDoNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(supervisor.Plugin{Name: "fixture", RollbackWindow: -1})
	s := w.open()
	mustCall(t, s, "fixture", "")
	for n := range 5 {
		if _, err := call(t, s, "fixture", "relay"); grpcstatus.Code(err) != codes.Internal {
			t.Fatalf("call %d: %v", n, err)
		}
	}
	if st := status(t, s, "fixture"); st.Degraded != "" || st.FailedCalls != 0 || st.Calls != 6 {
		t.Errorf("after the errors of a driver: %+v", st)
	}
}
