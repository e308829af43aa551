package watcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/internal/printable"
)

// Detached is the outcome for one claim that an operator had detached.
type Detached struct {
	Claim    claim.Claim // as it was before
	Released bool
	Message  string // what was done, or why it could not be
}

// ErrNoClaims is returned if the volume has no claim on that node.
var ErrNoClaims = errcode.NotFound.New("no claim to detach")

// Detach releases every claim of a volume on a node, and says for each what was done or why it could not be. It waits
// for the release until ctx ends; the release continues after that. With force it frees the claims of a node that the
// operator, by, vouches is down.
func (w *Watcher) Detach(ctx context.Context, ref claim.VolumeRef, node string, force bool, by string) ([]Detached,
	error,
) {
	volume, claims, err := w.read(ctx, ref)
	if err != nil {
		return nil, err
	}
	var out []Detached
	for _, c := range claims {
		if c.Node != node {
			continue
		}
		d := Detached{Claim: c}
		if force {
			d.Message, err = w.force(ctx, c, by)
		} else {
			d.Message, err = w.detach(ctx, c, volume)
		}
		d.Released = err == nil
		if err != nil {
			d.Message = err.Error()
		}
		out = append(out, d)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("volume %q on node %q: %w (see: pannier volume status %s)", ref, node, ErrNoClaims,
			printable.Argument(ref.ID))
	}
	return out, nil
}

// forceDelay is how long the controller may take to detach a volume from a node that an operator vouches is down.
// After that the claim is freed without it.
const forceDelay = 5 * time.Second

// force frees a claim without asking its node. A node that answers is not down, and the volume would stay mounted
// there, so that is an error.
func (w *Watcher) force(ctx context.Context, c claim.Claim, by string) (string, error) {
	if c.State.Before(claim.NodeDetached) {
		if w.answers(ctx, c) {
			return "", fmt.Errorf("node %q is up and may have it mounted: detach it without -force", c.Node)
		}
		if err := w.forced(ctx, c, claim.NodeDetached, by); err != nil {
			return "", err
		}
		// The workload does not run there any more, and may be started elsewhere.
		run := claim.Run{Ref: c.Workload, Node: c.Node, Index: c.Index}
		if _, err := cluster.Apply(ctx, w.Cluster, command.End(run)); err != nil {
			return "", fmt.Errorf("mark workload %q as ended: %w", c.Workload, err)
		}
	}
	w.Log.Warn("a claim was freed by force", "volume", c.Volume, "workload", c.Workload, "node", c.Node, "state", c.State,
		"by", by)
	// Another node can attach the volume only after the attachment to this one is gone.
	w.tryNow(c.Volume)
	waiting, cancel := context.WithTimeout(ctx, w.forceDelay)
	defer cancel()
	if w.awaitFreed(waiting, c) == nil {
		return fmt.Sprintf("freed by force (%s); a mount on node %q may be left", by, c.Node), nil
	}
	attempt, _ := w.Attempt(c.Volume)
	if err := w.forced(ctx, c, claim.Freed, by); err != nil {
		return "", err
	}
	text := fmt.Sprintf("freed by force (%s); a mount or an attachment on node %q may be left", by, c.Node)
	if attempt.Error != "" {
		text += ": " + attempt.Error
	}
	return text, nil
}

func (w *Watcher) forced(ctx context.Context, c claim.Claim, to claim.State, by string) error {
	_, err := cluster.Apply(ctx, w.Cluster,
		&command.AdvanceClaims{By: by, Items: []command.Advance{{
			Volume: c.Volume, Workload: c.Workload, Index: c.Index,
			To: to,
		}}})
	if err != nil {
		return fmt.Errorf("free the claim of workload %q: %w", c.Workload, err)
	}
	return nil
}

// answers reports whether a claim's node is up.
func (w *Watcher) answers(ctx context.Context, c claim.Claim) bool {
	ctx, cancel := context.WithTimeout(ctx, w.forceDelay)
	defer cancel()
	_, err := w.owns(ctx, c)
	return err == nil
}

func (w *Watcher) detach(ctx context.Context, c claim.Claim, v claim.Volume) (string, error) {
	did := "released what was on its way out"
	var err error
	if c.State == claim.Taken {
		if did, err = w.end(ctx, c, v); err != nil {
			return "", err
		}
	} else if c.State.Before(claim.NodeDetached) {
		if _, err := w.owns(ctx, c); err != nil {
			return "", err
		}
	}
	w.tryNow(c.Volume)
	if err := w.awaitFreed(ctx, c); err != nil {
		if a, ok := w.Attempt(c.Volume); ok && a.Error != "" {
			return "", fmt.Errorf("%w; the release continues, its last attempt failed: %s", err, a.Error)
		}
		return "", fmt.Errorf("%w; the release continues", err)
	}
	return did, nil
}

// end stops the workload that has a claim. If something, such as a supervisor, has already started it again, the new
// run is left alone.
func (w *Watcher) end(ctx context.Context, c claim.Claim, v claim.Volume) (did string, err error) {
	var before claim.Workload
	err = w.Cluster.ReadLatest(ctx, func(tx *state.ReadTx) (err error) {
		before, err = tx.Workload(c.Workload)
		return err
	})
	known := !errors.Is(err, claim.ErrWorkloadNotFound)
	if err != nil && known {
		return "", err
	}
	if did, err = w.stop(ctx, c, v); err != nil || !known {
		return did, err
	}
	if _, err := cluster.Apply(ctx, w.Cluster,
		command.End(claim.Run{Ref: c.Workload, Node: before.Node, Index: before.CreateIndex})); err != nil {
		return "", fmt.Errorf("mark workload %q as ended: %w", c.Workload, err)
	}
	return did, nil
}

// awaitFreed waits until this claim, identified by its index, is gone.
func (w *Watcher) awaitFreed(ctx context.Context, c claim.Claim) error {
	for {
		watching, cancel := context.WithCancel(ctx)
		changed := w.Cluster.Watch(watching, state.TopicClaims(c.Volume))
		var now claim.Claim
		err := w.Cluster.Read(ctx, func(tx *state.ReadTx) (err error) {
			now, err = tx.Claim(c.Volume, c.Workload)
			return err
		})
		if errors.Is(err, claim.ErrClaimNotFound) || err == nil && now.Index != c.Index {
			cancel()
			return nil
		}
		if err == nil {
			<-changed // also when ctx ends
			err = ctx.Err()
		}
		cancel()
		if err != nil {
			return fmt.Errorf("workload %q still holds volume %q (%s): %w", c.Workload, c.Volume, now.State, err)
		}
	}
}

// errNoOtherNodes is the reason why a standalone host cannot reach another node.
var errNoOtherNodes = errors.New("this host is alone: it has no tls block, so it reaches no other node")

// owns asks a claim's node whether it will stop the workload itself.
func (w *Watcher) owns(ctx context.Context, c claim.Claim) (bool, error) {
	switch {
	case c.Node == w.NodeName:
		return w.Node.Owns(c.Workload), nil
	case w.Nodes == nil:
		return false, w.away(c, errNoOtherNodes)
	}
	owns, err := w.Nodes.Owns(ctx, c)
	return owns, w.away(c, err)
}

// stop asks a claim's node to stop its workload.
func (w *Watcher) stop(ctx context.Context, c claim.Claim, v claim.Volume) (did string, err error) {
	switch {
	case c.Node == w.NodeName:
		return w.Node.Detach(ctx, c, v)
	case w.Nodes == nil:
		return "", w.away(c, errNoOtherNodes)
	}
	did, err = w.Nodes.Detach(ctx, c, v)
	return did, w.away(c, err)
}

// away adds to an error of the claim's node what the claim waits for.
func (w *Watcher) away(c claim.Claim, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(
		"volume %q is still claimed by workload %q on node %q, which cannot be reached from node %q, or cannot release it: %w; when that node is down for good: pannier volume detach -force %s %s",
		c.Volume, c.Workload, c.Node, w.NodeName, err, printable.Argument(c.Volume.ID), c.Node)
}
