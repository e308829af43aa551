package watcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pannier/pannier/cluster"
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

// releases are the steps of a release after a workload's end: what is done for a claim in one state before it goes to
// the next one. done is false if its node has to act first.
var releases = []struct {
	from claim.State
	do   func(w *Watcher, ctx context.Context, c claim.Claim, v claim.Volume) (done bool, err error)
	to   claim.State
}{
	{claim.Unpublishing, (*Watcher).nodeDetach, claim.NodeDetached},
	{claim.NodeDetached, (*Watcher).controllerDetach, claim.Freed},
}

// releaseClaim takes one claim through its states. done is false if its node has to act first.
func (w *Watcher) releaseClaim(ctx context.Context, c claim.Claim, v claim.Volume) (done bool, err error) {
	for _, step := range releases {
		if c.State != step.from {
			continue
		}
		if done, err = step.do(w, ctx, c, v); err != nil || !done {
			return false, err
		}
		if err := w.advance(ctx, c, step.to); err != nil {
			return false, err
		}
		c.State = step.to
	}
	w.reportFreed(ctx, c)
	return true, nil
}

// reportFreed publishes that a claim is free, and who released it: for a node that is not ready, the leader.
func (w *Watcher) reportFreed(ctx context.Context, c claim.Claim) {
	by := fmt.Sprintf("node %q", c.Node)
	var n claim.Node
	err := w.Cluster.Read(ctx, func(tx *state.ReadTx) (err error) {
		n, err = tx.Node(c.Node)
		return err
	})
	if err == nil && !n.Ready() {
		by = fmt.Sprintf("the leader, because node %q is %s", c.Node, n.Status)
	}
	w.Events.Publish(events.Event{
		Topic: events.TopicClaim, Type: "freed", Subject: c.Volume.String(),
		Message: fmt.Sprintf("released for workload %q by %s", c.Workload, by),
	})
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

// controllerDetach detaches the volume from the node if a controller may have attached it, and this was its last claim
// there. Only the claim reports whether: a driver whose controllers are gone has attached it all the same.
func (w *Watcher) controllerDetach(ctx context.Context, c claim.Claim, v claim.Volume) (done bool, err error) {
	if c.AttachedBy == "" {
		return true, nil
	}
	v.PluginID = c.AttachedBy
	end, err := w.detaches.Lock(ctx, v.PluginID)
	if err != nil {
		return false, err
	}
	defer end()
	_, err = w.Controllers.Detach(ctx, v, c.Node, c.DriverNodeID,
		func(ctx context.Context) (bool, error) { return w.othersThere(ctx, c) })
	return err == nil, err
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
	item := command.Advance{Volume: c.Volume, Workload: c.Workload, Index: c.Index, To: to}
	_, err := cluster.Apply(ctx, w.Cluster, &command.AdvanceClaims{Items: []command.Advance{item}})
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
