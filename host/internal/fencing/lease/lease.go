package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/internal/errcode"
)

// ErrNoLease means that this node may not use volumes now. Nothing was published.
var ErrNoLease = errcode.Unavailable.New("this node has no lease on its claims")

// unanswered is the usual reason for the end of a lease.
const unanswered = "no server has answered a heartbeat in time"

// Fence is what a Lease needs of the fence (*fence.Client).
type Fence interface {
	// State returns what the fence guards, including changes that it has not confirmed yet.
	State() fence.State
	// Update changes what the fence guards, and waits until it has confirmed the change.
	Update(ctx context.Context, change func(fence.Change)) error
}

// Lease is this node's right to use volumes. A standalone host has a nil Lease, which is always valid.
type Lease struct {
	fence Fence
	log   hclog.Logger

	renewing sync.Mutex       // held while an answer is processed
	sent     boottime.Instant // of the newest heartbeat that was answered

	mu    sync.Mutex
	epoch uint64
	times fence.Times
	over  bool          // the node has no lease now
	why   string        // why the last one ended
	first bool          // there was none before this process of the agent
	lost  chan struct{} // closed when the current lease ends
	timer *time.Timer
}

// New takes over the lease of an earlier process of the agent, if it has not ended yet.
func New(f Fence, log hclog.Logger) *Lease {
	l := &Lease{fence: f, log: log, lost: make(chan struct{}), why: "no server has answered since the agent was started"}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times = f.State().Times
	switch left := l.left(); {
	case left > 0:
		l.epoch = 1
		l.watch(left)
	case l.times.Stop == 0:
		l.over, l.first = true, true // there was none that could be lost
	default:
		l.end(l.why)
	}
	return l
}

// Valid returns nil if volumes may be published, else ErrNoLease with since when, why, and what to do.
func (l *Lease) Valid() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.valid()
}

func (l *Lease) valid() error {
	if !l.over && l.left() > 0 {
		return nil
	}
	since := ""
	switch {
	case l.first && l.epoch == 0 && l.times.Stop != 0: // Expire was told of the time before the node joined
		return fmt.Errorf("%w: it has not got its first lease yet; see: pannier node status", ErrNoLease)
	case l.times.Stop != 0:
		since = fmt.Sprintf(" since %v", time.Now().Add(l.left()).UTC().Format(time.RFC3339))
	}
	return fmt.Errorf("%w%s: %s; check that the servers can be reached: pannier server members", ErrNoLease, since, l.why)
}

// Left is how long the lease lasts; 0: there is none.
func (l *Lease) Left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return 0
	}
	return max(l.left(), 0)
}

// Epoch counts the leases of this process of the agent. While it stays the same, the servers cannot have released a
// claim of this node. Before a claim that was checked in another epoch is used, it must be compared with the ledger.
// It is always 0 on a standalone host.
func (l *Lease) Epoch() uint64 {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch
}

// Lost is closed when the current lease ends, and from the start if the lease had ended before this process of the
// agent: the workloads with volumes must be stopped. The next answer of a server replaces the channel. It is open if
// there never was a lease, and nil on a standalone host.
func (l *Lease) Lost() <-chan struct{} {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// NotGranted records why a heartbeat failed, as the reason for having no lease if there never was one. The servers may
// be refusing this node.
func (l *Lease) NotGranted(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over && l.times.Stop == 0 {
		l.why = fmt.Sprintf("none was granted since the agent was started: %v", err)
	}
}

// Why tells people how the lease was lost.
func (l *Lease) Why() string {
	if l == nil {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// Protect tells the fence about mounts that are about to be made, and returns when it has confirmed them. Call it
// before a driver is asked to mount, and Valid after the driver has answered: if the lease ended meanwhile, the mount
// must be removed. It may be repeated. Errors: ErrNoLease; the fence cannot be reached.
func (l *Lease) Protect(ctx context.Context, mounts ...fence.Mount) error {
	return l.guard(ctx, func(c fence.Change) { c.Protect(mounts...) })
}

// ProtectProcess tells the fence about a process that uses the workload's volumes. It returns the errors of Protect;
// the process must then not continue.
func (l *Lease) ProtectProcess(ctx context.Context, p fence.Process) error {
	return l.guard(ctx, func(c fence.Change) { c.ProtectProcess(p) })
}

func (l *Lease) guard(ctx context.Context, change func(fence.Change)) error {
	if l == nil {
		return nil
	}
	if err := l.Valid(); err != nil {
		return err
	}
	if err := l.fence.Update(ctx, change); err != nil {
		return fmt.Errorf("tell the fence: %w", err)
	}
	return l.Valid()
}

// Release tells the fence that mounts are gone. It may be repeated.
func (l *Lease) Release(ctx context.Context, mounts ...fence.Mount) error {
	return l.release(ctx, func(c fence.Change) { c.Release(mounts...) })
}

// ReleaseProcess tells the fence that a process has ended, or uses no volume any more.
func (l *Lease) ReleaseProcess(ctx context.Context, p fence.Process) error {
	return l.release(ctx, func(c fence.Change) { c.ReleaseProcess(p) })
}

func (l *Lease) release(ctx context.Context, change func(fence.Change)) error {
	if l == nil {
		return nil
	}
	if err := l.fence.Update(ctx, change); err != nil {
		return fmt.Errorf("tell the fence: %w", err)
	}
	return nil
}

// Renew extends the lease after the answer to a heartbeat. The answer to an older heartbeat than the last one changes
// nothing. Errors: unsafe timeouts; the fence cannot be reached. The lease then stays as it was.
func (l *Lease) Renew(ctx context.Context, sent boottime.Instant, timeouts claim.Liveness) error {
	if err := claim.CheckLiveness(timeouts); err != nil {
		return fmt.Errorf("the servers' timeouts: %w", err)
	}
	l.renewing.Lock()
	defer l.renewing.Unlock()
	if sent <= l.sent {
		return nil
	}
	times := NodeTimes(sent, timeouts)
	// A full disk (ErrNotKept) must not stop the workloads.
	if err := l.fence.Update(ctx, func(c fence.Change) { c.SetTimes(times) }); err != nil &&
		!errors.Is(err, fence.ErrNotKept) {
		return fmt.Errorf("renew the lease: tell the fence: %w", err)
	}
	l.sent = sent
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over && l.left() <= 0 { // the process was suspended, and the timer has not fired yet
		l.end(unanswered)
	}
	l.times = times
	left := l.left()
	if left <= 0 {
		l.end("the servers answered too late")
		return nil
	}
	if l.over {
		l.begin()
	}
	l.watch(left)
	return nil
}

// Expire ends the lease at once and lets the fence act. The servers have released this node's claims because an
// operator said so.
func (l *Lease) Expire(ctx context.Context, why string) error {
	l.renewing.Lock()
	defer l.renewing.Unlock()
	now := boottime.Now()
	l.mu.Lock()
	ended := l.over && l.times.Stop != 0 && l.times.Deadline <= now
	if !ended {
		l.times = fence.Times{Stop: now, Deadline: now}
		l.end(why)
	}
	times := l.times
	l.mu.Unlock()
	if ended {
		return nil
	}
	if err := l.fence.Update(ctx, func(c fence.Change) { c.SetTimes(times) }); err != nil {
		return fmt.Errorf("end the lease: tell the fence: %w", err)
	}
	return nil
}

// Close stops watching the lease, which stays valid: the agent's next process takes it over.
func (l *Lease) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	return nil
}

// left returns how long the lease lasts. l.mu is held.
func (l *Lease) left() time.Duration { return l.times.Stop.Sub(boottime.Now()) }

// begin starts a new epoch. l.mu is held.
func (l *Lease) begin() {
	l.epoch++
	l.over = false
	select {
	case <-l.lost:
		l.lost = make(chan struct{})
	default: // the first lease
	}
}

// end marks the lease as over. l.mu is held.
func (l *Lease) end(why string) {
	if !l.over {
		l.log.Warn("the lease on this node's claims is over: stopping its workloads with volumes", "since", l.times.Stop,
			"reason", why)
	}
	l.over, l.why = true, why
	select {
	case <-l.lost:
	default:
		close(l.lost)
	}
}

// watch calls end when the lease ends. l.mu is held. Go's timers stop while the machine is suspended, so the clock is
// checked at least once a second.
func (l *Lease) watch(left time.Duration) {
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = time.AfterFunc(min(left, time.Second), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.over {
			return
		}
		if left := l.left(); left > 0 {
			l.watch(left)
			return
		}
		l.end(unanswered)
	})
}

// NodeTimes returns when the lease ends after the answer to a heartbeat that was sent at that moment.
func NodeTimes(sent boottime.Instant, l claim.Liveness) fence.Times {
	stop := sent.Add(l.StopAfter)
	return fence.Times{Stop: stop, Deadline: stop.Add(l.Margin / claim.FenceShare)}
}
