package cluster

import (
	"context"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// Unmounted is called on the leader when a node reports that what it had mounted for a claim is gone. If nothing else
// is to be done for the claim's release it returns a function, which is called when the claim is freed; else nil.
type Unmounted func(ctx context.Context, item command.Advance) (freed func())

// OnUnmounted makes this node, while it leads, free claims for which nothing is left to be done together with the
// report that they are unmounted, in one write of the log. Without it, or where it fails, a claim waits for whoever
// releases the claims in the state node-detached.
func (n *Node) OnUnmounted(fn Unmounted) { n.unmounted.Store(&fn) }

// freeing returns the command that frees the claims that c reports as unmounted, as a decision of this leader, and
// what to call when it has; nil: there are none.
func (n *Node) freeing(ctx context.Context, c command.Command) (free *command.AdvanceClaims, freed []func()) {
	report, is := c.(*command.AdvanceClaims)
	decide, term := n.unmounted.Load(), n.leadership.since()
	if !is || decide == nil || term == 0 || command.Term(c) != 0 || report.By != "" {
		return nil, nil
	}
	var items []command.Advance
	for _, item := range report.Items {
		if item.To != claim.NodeDetached || item.Index == 0 {
			continue
		}
		if done := (*decide)(ctx, item); done != nil {
			item.To, item.ForcedBy = claim.Freed, ""
			items, freed = append(items, item), append(freed, done)
		}
	}
	if len(items) == 0 {
		return nil, nil
	}
	free = &command.AdvanceClaims{Items: items}
	command.SetTerm(free, term)
	return free, freed
}
