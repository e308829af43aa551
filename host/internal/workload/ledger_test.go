package workload

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/csi/mounts"
)

// ledger is a real one, of a single server, which also does what its leader does for a release. It checks the mount
// table when a node says that nothing is mounted any more.
type ledger struct {
	*hooks
	node   *cluster.Node
	layout mounts.Layout
	wrong  func(format string, args ...any) // an invariant was broken
	keep   bool                             // claims are freed when the test says so, not at once

	mu    sync.Mutex
	again func() error // asks once more for the claims that were asked for last
}

// openLedger retries while the previous host's lock is held (see openJournal).
func openLedger(dir string, layout mounts.Layout, h *hooks, wrong func(string, ...any)) (*ledger, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	node, err := cluster.Open(ctx, cluster.Config{Dir: dir, Name: here, BootstrapExpect: 1})
	for err != nil && strings.Contains(err.Error(), "lock") && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
		node, err = cluster.Open(ctx, cluster.Config{Dir: dir, Name: here, BootstrapExpect: 1})
	}
	if err != nil {
		return nil, err
	}
	return &ledger{hooks: h, node: node, layout: layout, wrong: wrong},
		node.WaitReady(ctx)
}

func (l *ledger) add(v claim.Volume) error {
	_, err := cluster.Apply(context.Background(), l.node, &command.RegisterVolume{Volume: v})
	return err
}

// read reads what a test looks at.
func read[T any](l *ledger, from func(tx *state.ReadTx) (T, error)) (out T) {
	err := l.node.Read(context.Background(), func(tx *state.ReadTx) (err error) {
		out, err = from(tx)
		return err
	})
	if err != nil {
		l.wrong("read the ledger: %v", err)
	}
	return out
}

func (l *ledger) claims() []claim.Claim { return read(l, (*state.ReadTx).AllClaims) }

func (l *ledger) tokens() []claim.Token {
	return read(l, func(tx *state.ReadTx) ([]claim.Token, error) { return tx.Tokens("") })
}

// Apply is the ledger's, with what the test wants before and after it.
func (l *ledger) Apply(ctx context.Context, c command.Command) (result any, err error) {
	apply := func() error {
		result, err = l.node.Apply(context.WithoutCancel(ctx), c)
		return err
	}
	switch c := c.(type) {
	case *command.StartWorkload:
		l.mu.Lock()
		l.again = func() error {
			_, err := cluster.Apply(context.WithoutCancel(ctx), l.node, &command.StartWorkload{
				Ref: c.Ref, Node: c.Node, RunID: c.RunID, Claims: c.Claims, Tokens: c.Tokens,
			})
			return err
		}
		l.mu.Unlock()
		err = l.call(ctx, "claim", c.Ref.ID, apply)
	case *command.AwaitWorkload:
		err = l.call(ctx, "await", c.Ref.ID, apply)
	case *command.EndWorkload:
		err = l.call(ctx, "end", c.Ref.ID, apply)
	case *command.AdvanceClaims:
		ref := c.Items[0].Workload
		err = l.call(ctx, "detached", ref.ID, func() error {
			if by := c.Items[0].ForcedBy; by != "" {
				l.note("detached " + ref.ID + ", forced by " + by)
			}
			l.checkDetached(c.Items)
			if err := apply(); err != nil || l.keep {
				return err
			}
			return l.free(ref)
		})
	default:
		err = apply()
	}
	return result, err
}

// Ask is the ledger's, with what the test wants before and after it.
func (l *ledger) Ask(ctx context.Context, q command.Query) (answer any, index uint64, err error) {
	ask := func() error {
		answer, index, err = l.node.Ask(ctx, q)
		return err
	}
	switch q := q.(type) {
	case *command.QueryOnNode:
		if err := l.reach(ctx, "onnode:before", ""); err != nil {
			return nil, 0, err
		}
		err = ask()
	case *command.QueryClaims:
		if q.Wait == 0 {
			err = ask()
			break
		}
		kind := "others"
		if l.mine(q.Workload) {
			kind = "freed"
		}
		err = l.call(ctx, kind, q.Workload.ID, ask)
	default:
		err = ask()
	}
	return answer, index, err
}

// mine reports whether a workload has run on this node.
func (l *ledger) mine(ref claim.WorkloadRef) bool {
	w, err := l.workload(ref)
	return err == nil && w.Node == here && w.Status != claim.Waiting
}

func (l *ledger) workload(ref claim.WorkloadRef) (claim.Workload, error) {
	w, _, err := cluster.Ask(context.Background(), l.node, &command.QueryWorkload{Ref: ref}, cluster.Blocking{})
	return w, err
}

func (l *ledger) volume(id string) (claim.Volume, error) {
	v, _, err := cluster.Ask(context.Background(), l.node, &command.QueryVolume{Ref: volumeRef(id)}, cluster.Blocking{})
	return v, err
}

// foreign is the source of a mount that belongs to no volume.
const foreign = "foreign"

// checkDetached checks that a claim is released only when nothing of its volume is mounted for the workload, and that
// its last user leaves no staging mount behind.
func (l *ledger) checkDetached(items []command.Advance) {
	all := l.claims()
	for _, c := range all {
		if slices.ContainsFunc(items,
			func(a command.Advance) bool { return a.Volume == c.Volume && a.Index == c.Index }) {
			l.checkUnmounted(all, c)
		}
	}
}

func (l *ledger) checkUnmounted(all []claim.Claim, c claim.Claim) {
	v, err := l.volume(c.Volume.ID)
	if err != nil {
		l.wrong("detached %s: %v", c.Volume, err)
		return
	}
	if c.State != claim.Unpublishing {
		l.wrong("the claim of %q on %q was detached while it was %s", c.Workload, c.Volume, c.State)
	}
	folders := []string{l.layout.WorkloadVolume(v.PluginID, c.Workload, c.Volume)}
	if !slices.ContainsFunc(all, func(o claim.Claim) bool { return o.Volume == c.Volume && o.Workload != c.Workload }) {
		folders = append(folders, l.layout.StagingOf(v.PluginID, c.Volume))
	}
	for _, dir := range folders {
		there, err := mounts.Below(dir)
		there = slices.DeleteFunc(there, func(m mounts.Mount) bool { return m.Source == foreign })
		if err != nil || len(there) > 0 {
			l.wrong("the claim of %q on %q is released while %v is mounted (%v)", c.Workload, c.Volume, there, err)
		}
	}
}

// free is the leader's part of a release: it frees the workload's claims that are detached.
func (l *ledger) free(ref claim.WorkloadRef) error {
	var items []command.Advance
	for _, c := range l.claims() {
		if c.Workload == ref && c.State == claim.NodeDetached {
			items = append(items, command.Advance{Volume: c.Volume, Workload: ref, Index: c.Index, To: claim.Freed})
		}
	}
	if len(items) == 0 {
		return nil
	}
	_, err := cluster.Apply(context.Background(), l.node, &command.AdvanceClaims{Items: items})
	return err
}

// takeAway does what the leader does when a node sent no heartbeat for long: it frees the workload's claims. If
// another node is given, the workload runs there now.
func (l *ledger) takeAway(id, to string) error {
	ctx := context.Background()
	own := slices.DeleteFunc(l.claims(), func(c claim.Claim) bool { return c.Workload != ref(id) })
	if _, err := cluster.Apply(ctx, l.node, command.End(claim.Run{Ref: ref(id)})); err != nil {
		return err
	}
	if err := cluster.NodeDetached(ctx, l.node, own); err != nil {
		return err
	}
	if err := l.free(ref(id)); err != nil || to == "" {
		return err
	}
	for n := range own {
		own[n].Node = to
	}
	_, err := cluster.Apply(ctx, l.node, command.Start(claim.Run{Ref: ref(id), Node: to, ID: "another"}, own))
	return err
}
