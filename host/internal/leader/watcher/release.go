package watcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/failpoint"
)

// release takes each claim of a volume that is being released as far as possible. tried is the fingerprint of the
// claims when it began. left reports that some wait for their node to unmount.
func (w *Watcher) release(ctx context.Context, ref claim.VolumeRef) (tried string, left bool, err error) {
	volume, claims, err := w.readWith(ctx, w.Cluster.Read, ref)
	if err == nil && slices.ContainsFunc(claims, func(c claim.Claim) bool { return c.State == claim.Unpublishing }) {
		// A node is to act on it. That this server leads is otherwise confirmed before the driver is called.
		volume, claims, err = w.read(ctx, ref)
	}
	if errors.Is(err, claim.ErrVolumeNotFound) {
		return "", false, nil // deregistered by force, with its claims
	}
	if err != nil {
		return "", false, err
	}
	tried = fingerprint(claims)
	// Claims that wait for a node, which may hang, come last.
	slices.SortStableFunc(claims, func(a, b claim.Claim) int {
		return cmp.Compare(slices.Index(claim.States, b.State), slices.Index(claim.States, a.State))
	})
	var errs []error
	for _, c := range claims {
		if !c.State.Releasing() {
			continue
		}
		done, err := w.releaseClaim(ctx, c, volume)
		if err != nil {
			errs = append(errs, err)
		}
		left = left || !done
	}
	return tried, left, errors.Join(errs...)
}

// anyReleasing reports whether any claim of the volume is being released, as this server's ledger has it.
func (w *Watcher) anyReleasing(ctx context.Context, ref claim.VolumeRef) (bool, error) {
	var claims []claim.Claim
	err := w.Cluster.Read(ctx, func(tx *state.ReadTx) (err error) {
		claims, err = tx.Claims(ref)
		return err
	})
	return slices.ContainsFunc(claims, func(c claim.Claim) bool { return c.State.Releasing() }), err
}

// releaseClaim takes one claim through its states. done is false if its node has to act first.
func (w *Watcher) releaseClaim(ctx context.Context, c claim.Claim, v claim.Volume) (done bool, err error) {
	if c.State == claim.Unpublishing {
		if done, err = w.nodeDetach(ctx, c, v); err != nil || !done {
			return false, err
		}
		if err := w.advance(ctx, c, claim.NodeDetached); err != nil {
			return false, err
		}
	}
	if err := w.controllerDetach(ctx, c, v); err != nil {
		return false, err
	}
	if err := w.advance(ctx, c, claim.Freed); err != nil {
		return false, err
	}
	w.reportFreed(c)
	return true, nil
}

func (w *Watcher) reportFreed(c claim.Claim) {
	w.Events.Publish(events.Event{
		Topic: events.TopicClaim, Type: "freed", Subject: c.Volume.String(),
		Message: fmt.Sprintf("workload %q on node %q released it", c.Workload, c.Node),
	})
}

// unmounted lets a claim be freed with its node's report that it is unmounted, where the driver has no volumes to
// detach. All other claims are released by the backlog, which sees the report in the ledger.
func (w *Watcher) unmounted(ctx context.Context, item command.Advance) (freed func()) {
	var v claim.Volume
	var c claim.Claim
	err := w.Cluster.Read(ctx, func(tx *state.ReadTx) (err error) {
		if v, err = tx.Volume(item.Volume); err == nil {
			c, err = tx.Claim(item.Volume, item.Workload)
		}
		return err
	})
	if err != nil || c.Index != item.Index || !c.State.Releasing() {
		return nil
	}
	if needed, err := w.Controllers.NeedsDetach(v.PluginID); err != nil || needed {
		return nil
	}
	failpoint.Here(string(claim.Freed), "advance")
	return func() {
		failpoint.Here(string(claim.Freed), "advanced")
		w.reportFreed(c)
	}
}

// nodeDetach unmounts what a claim may have left on its node. done is false if the node will do that itself.
func (w *Watcher) nodeDetach(ctx context.Context, c claim.Claim, v claim.Volume) (done bool, err error) {
	end, err := w.calls.Lock(ctx, c.Node)
	if err != nil {
		return false, err
	}
	defer end()
	owns, err := w.owns(ctx, c)
	switch {
	case err != nil || owns:
		return false, err
	case c.Node == w.NodeName:
		err = w.Node.DetachUnknown(ctx, c, v)
	default:
		err = w.away(c, w.Nodes.DetachUnknown(ctx, c, v))
	}
	return err == nil, err
}

// controllerDetach detaches the volume from the node if this was its last claim there.
func (w *Watcher) controllerDetach(ctx context.Context, c claim.Claim, v claim.Volume) error {
	needed, err := w.Controllers.NeedsDetach(v.PluginID)
	if err != nil || !needed {
		return err
	}
	end, err := w.detaches.Lock(ctx, v.PluginID)
	if err != nil {
		return err
	}
	defer end()
	_, err = w.Controllers.Detach(ctx, v, c.Node, c.DriverNodeID,
		func(ctx context.Context) (bool, error) { return w.othersThere(ctx, c) })
	return err
}

// othersThere reports whether another claim on the claim's volume stands on its node. It fails if this server does not
// lead any more.
func (w *Watcher) othersThere(ctx context.Context, c claim.Claim) (others bool, err error) {
	err = w.Cluster.ReadLatest(ctx, func(tx *state.ReadTx) error {
		claims, err := tx.Claims(c.Volume)
		others = slices.ContainsFunc(claims, func(o claim.Claim) bool {
			return o.Node == c.Node && o.Workload != c.Workload
		})
		return err
	})
	return others, err
}

func (w *Watcher) advance(ctx context.Context, c claim.Claim, to claim.State) error {
	failpoint.Here(string(to), "advance")
	err := w.marks.put(ctx, command.Advance{Volume: c.Volume, Workload: c.Workload, Index: c.Index, To: to})
	failpoint.Here(string(to), "advanced")
	if err != nil {
		return fmt.Errorf("mark the claim of workload %q on volume %q as %s: %w", c.Workload, c.Volume, to, err)
	}
	return nil
}

// read reads a volume and its claims, and fails if this server does not lead any more.
func (w *Watcher) read(ctx context.Context, ref claim.VolumeRef) (claim.Volume, []claim.Claim, error) {
	return w.readWith(ctx, w.Cluster.ReadLatest, ref)
}

func (w *Watcher) readWith(ctx context.Context, read func(context.Context, func(*state.ReadTx) error) error,
	ref claim.VolumeRef,
) (v claim.Volume, claims []claim.Claim, err error) {
	err = read(ctx, func(tx *state.ReadTx) error {
		v, claims, err = tx.VolumeWithClaims(ref)
		return err
	})
	return v, claims, err
}

// checkpoints writes the state changes of many releases to the ledger. Those that arrive while a command is being
// applied go into the next one together: for a node with a thousand claims that makes some dozens of commands instead
// of two thousand.
type checkpoints struct {
	apply func(ctx context.Context, by string, items ...command.Advance) (command.AdvanceClaimsResult, error)

	// releases are those that are under way, each of which may have a state change soon.
	releases atomic.Int32

	mu      sync.Mutex
	waiting []*mark
	busy    bool
	all     chan struct{} // closed once as many wait as may share a command; nil: nobody waits for that
}

// gather is how long a state change waits for those of other releases.
const gather = 3 * time.Millisecond

// mark is the state change of one claim.
type mark struct {
	item command.Advance
	done chan struct{}
	err  error
}

// put writes one claim's state change. ctx is that of the leader term, because a caller may be writing the changes of
// others too and must not give up before they do.
func (c *checkpoints) put(ctx context.Context, item command.Advance) error {
	m := &mark{item: item, done: make(chan struct{})}
	c.mu.Lock()
	c.waiting = append(c.waiting, m)
	lead := !c.busy
	c.busy = true
	if c.all != nil && c.complete() {
		close(c.all)
		c.all = nil
	}
	c.mu.Unlock()
	if lead {
		c.flush(ctx)
	}
	<-m.done
	return m.err
}

// complete reports whether no more state changes are to be expected for the next command. The lock is held.
func (c *checkpoints) complete() bool {
	return len(c.waiting) >= min(int(c.releases.Load()), command.MaxItems)
}

// gather waits for the state changes of other releases, if there are any.
func (c *checkpoints) gather(ctx context.Context) {
	c.mu.Lock()
	if len(c.waiting) == 0 || c.complete() {
		c.mu.Unlock()
		return
	}
	all := make(chan struct{})
	c.all = all
	c.mu.Unlock()
	late := time.NewTimer(gather)
	defer late.Stop()
	select {
	case <-all:
	case <-late.C:
	case <-ctx.Done():
	}
}

// flush writes everything that waits.
func (c *checkpoints) flush(ctx context.Context) {
	for {
		c.gather(ctx)
		c.mu.Lock()
		c.all = nil
		n := min(len(c.waiting), command.MaxItems)
		batch := c.waiting[:n]
		c.waiting = c.waiting[n:]
		c.busy = n > 0
		c.mu.Unlock()
		if n == 0 {
			return
		}
		c.write(ctx, batch)
	}
}

// write writes a batch as one command. If it is refused because of one of them, each becomes a command of its own.
func (c *checkpoints) write(ctx context.Context, batch []*mark) {
	items := make([]command.Advance, len(batch))
	for i, m := range batch {
		items[i] = m.item
	}
	_, err := c.apply(ctx, "", items...)
	for _, m := range batch {
		m.err = err
		if err != nil && len(batch) > 1 {
			_, m.err = c.apply(ctx, "", m.item)
		}
		close(m.done)
	}
}
