package volumesteps

import (
	"cmp"
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

// flight is a step that may make a call that mounts. When the step is given up while the driver works on the call, the
// step goes on in its own goroutine: only the driver's answer reports whether it has mounted.
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
func (c *driverCalls) apart(ctx context.Context, v *Volume, call string, do func(ctx context.Context) error) error {
	f := &flight{call: call, since: time.Now(), ended: make(chan struct{})}
	v.flight = f
	result := make(chan error, 1)
	c.flights.Go(func() {
		defer close(f.ended)
		result <- do(ctx)
	})
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	if !f.sent.Load() || c.closing.Err() != nil {
		return <-result
	}
	return fmt.Errorf("%s volume %q: %w: %w", call, v.VolumeRef, context.Cause(ctx), errInFlight)
}

var errInFlight = errors.New("the driver works on it; the outcome is not known yet")

// Wait waits until no step goes on. Closing must have ended.
func (c *driverCalls) Wait() { c.flights.Wait() }

// landed waits a little for a step on v that was given up while its driver worked on it, and fails while it goes on.
func (c *driverCalls) landed(ctx context.Context, v *Volume) error {
	if v.flight == nil {
		return nil
	}
	select {
	case <-v.flight.ended:
		return nil
	case <-time.After(answerWait):
	case <-ctx.Done():
	}
	return fmt.Errorf("driver %q has not answered the call to %s volume %q for workload %q that was made at %s: %s "+
		"until it has, at most %s from then", v.PluginID, v.flight.call, v.VolumeRef, v.workload, v.flight.since.Format(time.TimeOnly),
		v.kept(), c.spec(v).Timeout(v.flight.call))
}

// spec is the driver's, or its defaults if it is gone.
func (c *driverCalls) spec(v *Volume) drivers.Spec {
	d, _ := c.caller.Drivers.Get(v.PluginID)
	return d.Spec
}

// mounting is a call that mounts.
type mounting struct {
	verb, path string
	earlier    *unanswered                  // an earlier one at that path, which stays unanswered
	save       func(left *unanswered) error // writes what is unanswered to the journal
	call       func(ctx context.Context, client storage.Client, d drivers.Driver) error
}

// mount makes a call that mounts, and returns what stays unanswered at its path; the caller puts that into the journal.
// The end of ctx does not cancel the call, the driver's timeout and Closing do.
func (c *driverCalls) mount(ctx context.Context, v *Volume, m mounting) (left *unanswered, err error) {
	if _, err := c.caller.Await(ctx, v.PluginID, c.DriverWait); err != nil {
		return m.earlier, fmt.Errorf("%s volume %q for workload %q on driver %q: %w", m.verb, v.VolumeRef, v.workload, v.PluginID, err)
	}
	var made *unanswered // the last one, as it is in the journal
	tries, lost := 0, 0
	bounded, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(c.closing, cancel)() //nolint:contextcheck // the call outlives ctx, not the host
	call := func(bounded context.Context, client storage.Client, d drivers.Driver) error {
		if ctx.Err() != nil && tries == 0 {
			return context.Cause(ctx)
		}
		made = &unanswered{Call: m.verb, Since: boottime.Now(), PID: d.PID, Started: d.Started}
		if err := m.save(made); err != nil {
			return err
		}
		tries++
		if v.flight != nil {
			v.flight.sent.Store(true)
		}
		err := m.call(bounded, client, d)
		if !answered(err) || status.Code(err) == codes.Unavailable {
			lost++
		}
		return err
	}
	err = c.call(bounded, m.verb, v, c.DriverWait, call)
	// Of a call that was repeated, a try that was Unavailable has no answer: the plugin's process ended, or was given up.
	// One that failed in a process that fails its calls, such as a canary, was answered.
	if tries == 0 || answered(err) && (tries == 1 || lost == 0) {
		return m.earlier, err
	}
	given := *made
	given.Since = boottime.Now()
	c.log.Warn("a driver has not answered a call that mounts: it may mount at any time", "driver", v.PluginID, "call", m.verb,
		"volume", v.VolumeRef, "path", m.path, "error", err)
	return &given, err
}

// answered reports that a driver has answered a call, or never got it (sdk/storage): it does nothing for it any more.
func answered(err error) bool {
	code := status.Code(err)
	return code != codes.DeadlineExceeded && code != codes.Canceled && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, context.DeadlineExceeded)
}

// settled fails while a call that mounts has no answer and may have an effect yet. It is called before the opposite
// call: what is not mounted after both stays so.
func (c *driverCalls) settled(v *Volume, u *unanswered) error {
	if u == nil || u.gone() {
		return nil
	}
	left := u.Since.Add(cmp.Or(c.spec(v).SettleTime, drivers.DefaultSettleTime)).Sub(boottime.Now())
	if left <= 0 {
		return nil
	}
	or := ""
	if u.PID != 0 {
		or = fmt.Sprintf(", or until its process %d has ended", u.PID)
	}
	return fmt.Errorf("driver %q never answered a call to %s volume %q for workload %q, and may mount it yet: %s "+
		"for another %s (settle_time of the driver)%s", v.PluginID, u.Call, v.VolumeRef, v.workload, v.kept(), left.Round(time.Second), or)
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
