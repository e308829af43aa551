package volumesteps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/sdk/storage"
)

// unanswered is a call that mounts a volume, which was made and has no answer: its driver may mount at any time, also
// after it has answered the opposite call. It is in the journal from before the call until its answer. Without an
// answer it stays until the driver's process has ended, or until the driver's SettleTime has passed; so long the
// volume's claim is kept, since a second writer may be on another node as soon as it is freed.
type unanswered struct {
	Call  string           `json:"call"`
	Since boottime.Instant `json:"since"` // when it was given up; if the host was killed, when it was made
	// PID and Started, in clock ticks since boot, are the driver's process; 0: it is not run by the host.
	PID     int    `json:"pid,omitempty"`
	Started uint64 `json:"started,omitempty"`
}

// calls are the unanswered ones, by the path at which they mount.
const calls journal.Bucket[unanswered] = "unanswered"

// flight is a step that may make a call that mounts. When the step is given up while the driver works on the call, the
// step goes on in its own goroutine: only the driver's answer says whether it has mounted.
type flight struct {
	call  string
	since time.Time
	sent  atomic.Bool   // the call is made
	ended chan struct{} // closed when the step has ended
}

// answerWait is how long an undo waits for the answer to a call before it reports that it waits.
const answerWait = 5 * time.Second

// apart runs a step that makes a call that mounts. It returns when the step ends, or when ctx ends while the driver
// works on the call.
func (s *Steps) apart(ctx context.Context, v *Volume, call string, do func(ctx context.Context) error) error {
	f := &flight{call: call, since: time.Now(), ended: make(chan struct{})}
	v.flight = f
	result := make(chan error, 1)
	s.flights.Go(func() {
		defer close(f.ended)
		result <- do(ctx)
	})
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	if !f.sent.Load() || s.Closing.Err() != nil {
		return <-result
	}
	return fmt.Errorf("%s volume %q: %w: %w", call, v.Ref, context.Cause(ctx), errInFlight)
}

var errInFlight = errors.New("the driver works on it; the outcome is not known yet")

// Wait waits until no step goes on. Closing must have ended.
func (s *Steps) Wait() { s.flights.Wait() }

// landed waits a little for a step on v that was given up while its driver worked on it, and fails while it goes on.
func (s *Steps) landed(ctx context.Context, v *Volume) error {
	if v.flight == nil {
		return nil
	}
	select {
	case <-v.flight.ended:
		return nil
	case <-time.After(answerWait):
	case <-ctx.Done():
	}
	return fmt.Errorf("driver %q has not answered the call to %s volume %q for workload %q that was made at %s: its claim is kept "+
		"until it has, at most %s from then", v.Driver, v.flight.call, v.Ref, v.workload, v.flight.since.Format(time.TimeOnly),
		s.spec(v).Timeout(v.flight.call))
}

// spec is the driver's, or its defaults if it is gone.
func (s *Steps) spec(v *Volume) drivers.Spec {
	d, _ := s.Calls.Drivers.Get(v.Driver)
	return d.Spec
}

// mount makes a call that mounts at path. The end of ctx does not cancel it, the driver's timeout and Closing do.
func (s *Steps) mount(ctx context.Context, call string, v *Volume, path string,
	fn func(ctx context.Context, c storage.Client, d drivers.Driver) error,
) error {
	if _, err := s.Calls.Await(ctx, v.Driver, s.DriverWait); err != nil {
		return fmt.Errorf("%s volume %q for workload %q on driver %q: %w", call, v.Ref, v.workload, v.Driver, err)
	}
	before, err := s.unansweredAt(path)
	if err != nil {
		return err
	}
	made := unanswered{Call: call}
	tries := 0
	bounded, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(s.Closing, cancel)() //nolint:contextcheck // the call outlives ctx, not the host
	err = s.call(bounded, call, v, s.DriverWait, func(bounded context.Context, c storage.Client, d drivers.Driver) error {
		made.Since, made.PID, made.Started = boottime.Now(), 0, 0
		if stat, err := procfs.ReadStat(procfs.Dir(d.PID)); d.PID != 0 && err == nil {
			made.PID, made.Started = d.PID, stat.StartTime
		}
		if err := s.noteUnanswered(path, &made); err != nil {
			return err
		}
		if ctx.Err() != nil && tries == 0 {
			return context.Cause(ctx)
		}
		tries++
		if v.flight != nil {
			v.flight.sent.Store(true)
		}
		return fn(bounded, c, d)
	})
	if tries > 1 || tries == 1 && !answered(err) {
		made.Since = boottime.Now()
		s.Log.Warn("a driver has not answered a call that mounts: it may mount at any time", "driver", v.Driver, "call", call,
			"volume", v.Ref, "path", path, "error", err)
		return errors.Join(err, s.noteUnanswered(path, &made))
	}
	return errors.Join(err, s.noteUnanswered(path, before))
}

// answered reports that a driver has answered a call, or never got it (sdk/storage): it does nothing for it any more.
func answered(err error) bool {
	code := status.Code(err)
	return code != codes.DeadlineExceeded && code != codes.Canceled && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, context.DeadlineExceeded)
}

// settled fails while a call that mounts at path has no answer and may have an effect yet. It is called before the
// opposite call: what is not mounted after both stays so.
func (s *Steps) settled(v *Volume, path string) error {
	u, err := s.unansweredAt(path)
	if err != nil || u == nil || u.gone() {
		return err
	}
	left := u.Since.Add(s.settleTime(v)).Sub(boottime.Now())
	if left <= 0 {
		return nil
	}
	or := ""
	if u.PID != 0 {
		or = fmt.Sprintf(", or until its process %d has ended", u.PID)
	}
	return fmt.Errorf("driver %q never answered a call to %s volume %q for workload %q, and may mount it yet: its claim is kept "+
		"for another %s (settle_time of the driver)%s", v.Driver, u.Call, v.Ref, v.workload, left.Round(time.Second), or)
}

func (s *Steps) settleTime(v *Volume) time.Duration {
	if long := s.spec(v).SettleTime; long > 0 {
		return long
	}
	return drivers.DefaultSettleTime
}

// gone reports that the driver's process has ended, with everything that it has started in its session.
func (u *unanswered) gone() bool {
	if u.PID == 0 {
		return false
	}
	all, err := procfs.Processes()
	return err == nil && !slices.ContainsFunc(all, func(p procfs.Stat) bool {
		return !p.Ended() && (p.PID == u.PID && p.StartTime == u.Started || p.PID != u.PID && p.Session == u.PID)
	})
}

func (s *Steps) unansweredAt(path string) (u *unanswered, err error) {
	err = s.Journal.View(func(tx *journal.Tx) error {
		u, err = calls.Get(tx, path)
		return err
	})
	return u, err
}

// forgetUnanswered deletes the record of a path, if there is one.
func (s *Steps) forgetUnanswered(path string) error {
	if u, err := s.unansweredAt(path); err != nil || u == nil {
		return err
	}
	return s.noteUnanswered(path, nil)
}

// noteUnanswered writes the record of a path, or deletes it if u is nil.
func (s *Steps) noteUnanswered(path string, u *unanswered) error {
	defer failpoint.Here(string(calls), "saved")
	return s.Journal.Update(func(tx *journal.Tx) error {
		if u == nil {
			return calls.Delete(tx, path)
		}
		return calls.Put(tx, path, u)
	})
}
