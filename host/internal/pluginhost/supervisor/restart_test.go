package supervisor_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

// A restart brings a new process of the same binary up beside the old one. Callers notice nothing.
func TestRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	mustCall(t, s, "fixture", "")
	before := status(t, s, "fixture")
	l := startLoad(t, s, 200)
	for range 3 {
		was := status(t, s, "fixture")
		answered := l.calls.Load()
		st, err := s.Restart(within(t), "fixture", nil)
		if err != nil || st.PID == was.PID || st.SHA256 != before.SHA256 || st.LastGood != "" || len(st.Refused) != 0 ||
			!st.Swaps[len(st.Swaps)-1].Restart {
			t.Errorf("restarted: %v, %+v", err, st)
		}
		waitFor(t, "calls", func() bool { return l.calls.Load() > answered+20 })
	}
	l.end()
	w.settled(s)
	if l.failed.Load() != 0 || w.count(supervisor.EventRestarted) != 3 {
		t.Errorf("%d of %d calls failed, with %v; %d events", l.failed.Load(), l.calls.Load(), l.err,
			w.count(supervisor.EventRestarted))
	}
	if _, err := s.Restart(within(t), "nobody", nil); !errors.Is(err, supervisor.ErrUnknown) {
		t.Errorf("restarted an unknown plugin: %v", err)
	}
}

// A process that hangs holds up neither a restart nor a swap: its calls are given up, and repeated on the new one.
func TestAHungProcessIsReplaced(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(w *world, s *supervisor.Supervisor) error{
		"restart": func(_ *world, s *supervisor.Supervisor) error {
			_, err := s.Restart(context.Background(), "fixture", nil)
			return err
		},
		"swap": func(w *world, s *supervisor.Supervisor) error {
			w.serve(s, "1.3.0")
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.StopTimeout = time.Second
			s := w.open()
			mustCall(t, s, "fixture", "")
			hung := status(t, s, "fixture").PID
			l := startLoad(t, s, 50)
			waitFor(t, "calls", func() bool { return l.calls.Load() > 5 })
			check.Stop(t, hung)
			waitFor(t, "calls in flight", func() bool { return status(t, s, "fixture").Users == 8 })
			w.must(replace(w, s))
			waitFor(t, "the end of the process", func() bool { return !alive(hung) })
			l.end()
			w.settled(s)
			if l.failed.Load() != 0 || l.longest > 20*time.Second {
				t.Errorf("%d of %d calls failed, with %v; the longest took %v", l.failed.Load(), l.calls.Load(), l.err, l.longest)
			}
		})
	}
}

// What the old process has not finished after the grace that an operator gave is given up, and can be repeated.
func TestGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	handle, err := s.Acquire(within(t), "fixture")
	w.must(err)
	long := make(chan error, 1)
	ctx := within(t)
	go func() {
		defer handle.Release()
		_, err := storage.NewClient(handle.Conn).Attach(ctx, storage.Driver{ID: "d"},
			storage.AttachRequest{Volume: storage.Volume{Name: "sleep 50s"}})
		long <- err
	}()
	w.serve(s, "1.3.0")
	select {
	case err := <-long:
		t.Fatalf("the call ended with the swap: %v", err)
	default:
	}
	grace := time.Duration(0)
	second, err := s.Acquire(within(t), "fixture")
	w.must(err)
	defer second.Release()
	given := make(chan error, 1)
	go func() {
		_, err := storage.NewClient(second.Conn).Attach(ctx, storage.Driver{ID: "d"},
			storage.AttachRequest{Volume: storage.Volume{Name: "sleep 50s"}})
		given <- err
	}()
	_, err = s.Restart(within(t), "fixture", &grace)
	w.must(err)
	if err := <-given; !errors.Is(err, supervisor.ErrReplaced) {
		t.Errorf("a call that was given up: %v", err)
	}
	if _, err := storage.NewClient(second.Conn).Attach(ctx, storage.Driver{ID: "d"},
		storage.AttachRequest{}); !errors.Is(err, supervisor.ErrReplaced) {
		t.Errorf("a call on a process that was given up: %v", err)
	}
	select {
	case err := <-long:
		t.Errorf("the call of another process was given up: %v", err)
	default:
	}
	if _, err = s.Rollback(within(t), "fixture", "", &grace); err != nil {
		t.Error(err)
	}
}
