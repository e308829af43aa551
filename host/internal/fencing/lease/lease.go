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

// ErrNoLease says that this node may not use volumes now. Nothing was published.
var ErrNoLease = errcode.Unavailable.New("this node has no lease on its claims")

// unanswered is how most leases end.
const unanswered = "no server has answered a heartbeat in time"

// Fence is what a Lease needs of the fence (*fence.Client).
type Fence interface {
	// State is what the fence knows, as far as it has said.
	State() fence.State
	// Update changes what the fence knows, and waits until it has confirmed that.
	Update(ctx context.Context, change func(fence.Change)) error
}

// Lease is this node's right to use volumes. A nil one is that of a single host, and
// always valid.
type Lease struct {
	fence Fence
	log   hclog.Logger

	renewing sync.Mutex // one answer after the other
	sent     boottime.Instant

	mu    sync.Mutex
	epoch uint64
	times fence.Times
	over  bool          // there is none now
	why   string        // how the last one ended
	lost  chan struct{} // closed when the present lease is over
	timer *time.Timer
}

// New gives the lease that an earlier process of the agent had, where it still runs.
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
		l.over = true // and nothing was lost
	default:
		l.end(l.why)
	}
	return l
}

// Valid says whether volumes may be published: nil, or ErrNoLease and since when, why, and
// what to do.
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
	if l.times.Stop != 0 {
		since = fmt.Sprintf(" since %v", time.Now().Add(l.left()).UTC().Format(time.RFC3339))
	}
	return fmt.Errorf("%w%s: %s; see that the servers can be reached: pannier server members", ErrNoLease, since, l.why)
}

// Epoch counts the leases of this process of the agent: as long as it stays the same, no
// claim of this node's was let go of by the servers. A claim that was looked at under another
// epoch has to be compared with the ledger before it is used. Zero: always the same.
func (l *Lease) Epoch() uint64 {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch
}

// Lost is closed when the present lease is over, and at once where it was over before this
// process of the agent: the workloads with volumes are to be stopped. With the next answer
// of a server there is another channel. It is open where there never was a lease, and nil for a
// single host.
func (l *Lease) Lost() <-chan struct{} {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// NotGranted notes why the servers gave none, where there has never been one: it may be that they
// refuse this node.
func (l *Lease) NotGranted(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over && l.times.Stop == 0 {
		l.why = fmt.Sprintf("none was granted since the agent was started: %v", err)
	}
}

// Why tells how the lease was lost, for people.
func (l *Lease) Why() string {
	if l == nil {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// Protect tells the fence of mounts that are about to be made, and returns when it knows.
// It is to be called before a driver is asked for them, and Valid after the driver has
// answered: where the lease ended meanwhile, what was mounted is to be taken away.
// It may be repeated. Errors: ErrNoLease; that of a fence that cannot be reached.
func (l *Lease) Protect(ctx context.Context, mounts ...fence.Mount) error {
	return l.guard(ctx, func(c fence.Change) { c.Protect(mounts...) })
}

// ProtectProcess tells the fence of a process that uses the workload's volumes. Errors as
// those of Protect: the process must not go on then.
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

// Renew takes the answer to a heartbeat that was sent at a moment. An answer to an older
// heartbeat than one that was taken changes nothing. Errors: timeouts that are not safe;
// that of a fence that cannot be reached: then the lease stays as it was.
func (l *Lease) Renew(ctx context.Context, sent boottime.Instant, timeouts claim.Liveness) error {
	if err := Check(timeouts); err != nil {
		return fmt.Errorf("the servers' timeouts: %w", err)
	}
	l.renewing.Lock()
	defer l.renewing.Unlock()
	if sent <= l.sent {
		return nil
	}
	times := NodeTimes(sent, timeouts)
	// A disk that is full must not end what runs.
	if err := l.fence.Update(ctx, func(c fence.Change) { c.SetTimes(times) }); err != nil && !errors.Is(err, fence.ErrNotKept) {
		return fmt.Errorf("renew the lease: tell the fence: %w", err)
	}
	l.sent = sent
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over && l.left() <= 0 { // the agent was stopped, and its timer comes only now
		l.end(unanswered)
	}
	l.times = times
	left := l.left()
	if left <= 0 {
		l.end("the answer of the servers came too late")
		return nil
	}
	if l.over {
		l.begin()
	}
	l.watch(left)
	return nil
}

// Expire ends the lease at once, and lets the fence act: the servers have let go of this
// node's claims, since an operator said so.
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

// Close stops watching the lease, which runs on: the next process of the agent takes it
// over.
func (l *Lease) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	return nil
}

// left is how long the lease runs. l.mu is held.
func (l *Lease) left() time.Duration { return l.times.Stop.Sub(boottime.Now()) }

// begin starts another epoch. l.mu is held.
func (l *Lease) begin() {
	l.epoch++
	l.over = false
	select {
	case <-l.lost:
		l.lost = make(chan struct{})
	default: // the first one
	}
}

// end tells that the lease is over. l.mu is held.
func (l *Lease) end(why string) {
	if !l.over {
		l.log.Warn("the lease on this node's claims is over, its workloads with volumes are stopped", "since", l.times.Stop, "reason", why)
	}
	l.over, l.why = true, why
	select {
	case <-l.lost:
	default:
		close(l.lost)
	}
}

// watch sees the lease end. l.mu is held. Go's timers stand still while the machine is
// suspended, so the clock is asked at least once a second.
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
