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
	"github.com/pannier/pannier/host/internal/peer/noderecord"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
)

// ledger is a real one, of a single server, which also does what its leader does for a release. It checks the mount
// table when a node says that nothing is mounted any more.
type ledger struct {
	*hooks
	noderecord.Ledger
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
	return &ledger{hooks: h, Ledger: noderecord.Ledger{Cluster: node}, node: node, layout: layout, wrong: wrong},
		node.WaitReady(ctx)
}

func (l *ledger) add(v claim.Volume) error {
	_, err := l.node.RegisterVolume(context.Background(), v)
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

func (l *ledger) StartWorkload(ctx context.Context, run claim.Run, want []claim.Claim,
	tokens []claim.Token,
) (got volumesteps.Started, err error) {
	start := func() error {
		got, err = l.Ledger.StartWorkload(context.WithoutCancel(ctx), run, want, tokens)
		return err
	}
	l.mu.Lock()
	l.again = start
	l.mu.Unlock()
	err = l.call(ctx, "claim", run.Ref.ID, start)
	return got, err
}

func (l *ledger) AwaitWorkload(ctx context.Context, run claim.Run, after []claim.WorkloadRef) error {
	return l.call(ctx, "await", run.Ref.ID, func() error { return l.Ledger.AwaitWorkload(ctx, run, after) })
}

func (l *ledger) AwaitEnded(ctx context.Context, ref claim.WorkloadRef) error {
	return l.call(ctx, "others", ref.ID, func() error { return l.Ledger.AwaitEnded(ctx, ref) })
}

func (l *ledger) EndWorkload(ctx context.Context, run claim.Run) error {
	return l.call(ctx, "end", run.Ref.ID, func() error { return l.Ledger.EndWorkload(ctx, run) })
}

func (l *ledger) NodeDetached(ctx context.Context, claims []claim.Claim) error {
	if len(claims) == 0 {
		return nil
	}
	ref := claims[0].Workload
	return l.call(ctx, "detached", ref.ID, func() error {
		if by := claims[0].ForcedBy; by != "" {
			l.note("detached " + ref.ID + ", forced by " + by)
		}
		all := l.claims()
		for _, c := range all {
			if meant(claims, c) && c.State.Before(claim.NodeDetached) {
				l.checkDetached(all, c)
			}
		}
		err := l.Ledger.NodeDetached(ctx, claims)
		if err == nil && !l.keep {
			err = l.free(ref)
		}
		return err
	})
}

// meant reports whether an existing claim is one of those.
func meant(claims []claim.Claim, is claim.Claim) bool {
	return slices.ContainsFunc(claims, func(c claim.Claim) bool {
		return c.Workload == is.Workload && c.Volume == is.Volume && c.Node == is.Node &&
			(c.Index == 0 || c.Index == is.Index)
	})
}

// foreign is the source of a mount that belongs to no volume.
const foreign = "foreign"

// checkDetached checks that a claim is released only when nothing of its volume is mounted for the workload, and that
// its last user leaves no staging mount behind.
func (l *ledger) checkDetached(all []claim.Claim, c claim.Claim) {
	v, err := l.Volume(context.Background(), c.Volume)
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
	_, err := l.node.AdvanceClaims(context.Background(), "", items...)
	return err
}

// takeAway does what the leader does when a node sent no heartbeat for long: it frees the workload's claims. If
// another node is given, the workload runs there now.
func (l *ledger) takeAway(id, to string) error {
	ctx := context.Background()
	own, err := l.ClaimsOf(ctx, ref(id))
	if err != nil {
		return err
	}
	if _, err := l.node.EndRun(ctx, claim.Run{Ref: ref(id)}); err != nil {
		return err
	}
	if err := l.Ledger.NodeDetached(ctx, own); err != nil {
		return err
	}
	if err := l.free(ref(id)); err != nil || to == "" {
		return err
	}
	for n := range own {
		own[n].Node = to
	}
	_, err = l.Ledger.StartWorkload(ctx, claim.Run{Ref: ref(id), Node: to, ID: "another"}, own, nil)
	return err
}

func (l *ledger) AwaitFreed(ctx context.Context, claims []claim.Claim) error {
	of := ""
	if len(claims) > 0 {
		of = claims[0].Workload.ID
	}
	return l.call(ctx, "freed", of, func() error { return l.Ledger.AwaitFreed(ctx, claims) })
}

func (l *ledger) OnNode(ctx context.Context, node string) ([]claim.Workload, []claim.Claim, error) {
	if err := l.reach(ctx, "onnode:before", ""); err != nil {
		return nil, nil, err
	}
	return l.Ledger.OnNode(ctx, node)
}
