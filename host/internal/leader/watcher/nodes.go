package watcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
)

// errNoOtherNodes is why another node cannot be reached from a host that is alone.
var errNoOtherNodes = errors.New("this host is alone: it has no tls block, so it reaches no other node")

// owns asks a claim's node whether it takes the workload down by itself.
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

// away says what a claim waits for where its node did not do what it was asked.
func (w *Watcher) away(c claim.Claim, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("volume %q is still claimed by workload %q on node %q, which cannot be reached from node %q, or cannot let go of it: %w; when that node is down for good: pannier volume detach -force %s %s",
		c.Volume, c.Workload, c.Node, w.NodeName, err, c.Volume.ID, c.Node)
}
