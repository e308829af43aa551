package watcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/failpoint"
)

// release moves each claim of a volume that is on its way out as far as it goes. tried
// is the fingerprint of the claims as they were; left says that some wait for their node to
// take its mounts away.
func (w *Watcher) release(ctx context.Context, ref claim.VolumeRef) (tried string, left bool, err error) {
	volume, claims, err := w.read(ctx, ref)
	if errors.Is(err, claim.ErrVolumeNotFound) {
		return "", false, nil // deregistered by force, with its claims
	}
	if err != nil {
		return "", false, err
	}
	tried = fingerprint(claims)
	// Those that wait for a node, which may hang, come last.
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

// anyReleasing says whether a claim of the volume is on its way out.
func (w *Watcher) anyReleasing(ctx context.Context, ref claim.VolumeRef) (bool, error) {
	_, claims, err := w.read(ctx, ref)
	if errors.Is(err, claim.ErrVolumeNotFound) {
		return false, nil
	}
	return slices.ContainsFunc(claims, func(c claim.Claim) bool { return c.State.Releasing() }), err
}

// releaseClaim takes one claim through its states; done is false where its node
// has to move it.
func (w *Watcher) releaseClaim(ctx context.Context, c claim.Claim, v claim.Volume) (done bool, err error) {
	if c.State == claim.Unpublishing {
		owns, err := w.owns(ctx, c)
		if err != nil || owns {
			return false, err
		}
		if err := w.nodeDetach(ctx, c, v); err != nil {
			return false, err
		}
		c.State = claim.NodeDetached
	}
	if c.State == claim.NodeDetached {
		if err := w.controllerDetach(ctx, c, v); err != nil {
			return false, err
		}
	}
	if err := w.advance(ctx, c, claim.Freed); err != nil {
		return false, err
	}
	w.Events.Publish(events.Event{
		Topic: events.TopicClaim, Type: "freed", Subject: c.Volume.String(),
		Message: fmt.Sprintf("workload %q on node %q gave it back", c.Workload, c.Node),
	})
	return true, nil
}

// nodeDetach takes away what a claim may have left on its node.
func (w *Watcher) nodeDetach(ctx context.Context, c claim.Claim, v claim.Volume) error {
	var err error
	if c.Node == w.NodeName {
		err = w.Node.DetachUnknown(ctx, c, v)
	} else {
		err = w.away(c, w.Nodes.DetachUnknown(ctx, c, v))
	}
	if err != nil {
		return err
	}
	return w.advance(ctx, c, claim.NodeDetached)
}

// controllerDetach detaches the volume from the node when this was the last
// claim of it there.
func (w *Watcher) controllerDetach(ctx context.Context, c claim.Claim, v claim.Volume) error {
	needed, err := w.Controllers.NeedsDetach(v.PluginID)
	if err != nil || !needed {
		return err
	}
	othersThere := func(ctx context.Context) (bool, error) {
		_, claims, err := w.read(ctx, c.Volume)
		for _, o := range claims {
			if o.Node == c.Node && o.Workload != c.Workload {
				return true, err
			}
		}
		return false, err
	}
	if _, err := w.Controllers.Detach(ctx, v, c.Node, c.DriverNodeID, othersThere); err != nil {
		return err
	}
	return w.advance(ctx, c, claim.ControllerDetached)
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

// read reads a volume and its claims as they stand: a leader that was one only a moment ago
// decides nothing.
func (w *Watcher) read(ctx context.Context, ref claim.VolumeRef) (v claim.Volume, claims []claim.Claim, err error) {
	err = w.Cluster.ReadLatest(ctx, func(tx *state.ReadTx) error {
		if v, err = tx.Volume(ref); err != nil {
			return err
		}
		claims, err = tx.Claims(ref)
		return err
	})
	return v, claims, err
}

// checkpoints brings the marks of many releases into the ledger: those that come while a
// command is under way are the next command together. After the end of a node with a
// thousand claims that is some dozens of commands in place of two thousand.
type checkpoints struct {
	apply func(ctx context.Context, by string, items ...command.Advance) (command.AdvanceClaimsResult, error)

	mu      sync.Mutex
	waiting []*mark
	busy    bool
}

// mark is one claim's, and whether it is in the ledger.
type mark struct {
	item command.Advance
	done chan struct{}
	err  error
}

// put brings one claim's mark into the ledger. The context is the leadership's, so that
// whoever puts the marks of others does not give up before they do.
func (c *checkpoints) put(ctx context.Context, item command.Advance) error {
	m := &mark{item: item, done: make(chan struct{})}
	c.mu.Lock()
	c.waiting = append(c.waiting, m)
	lead := !c.busy
	c.busy = true
	c.mu.Unlock()
	if lead {
		c.flush(ctx)
	}
	<-m.done
	return m.err
}

// flush brings all that waits into the ledger.
func (c *checkpoints) flush(ctx context.Context) {
	for {
		c.mu.Lock()
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

// write puts marks into one command. One that is refused, refuses all: each then is a
// command of its own.
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
