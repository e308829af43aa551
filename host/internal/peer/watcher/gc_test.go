package watcher

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// records are the contents of a ledger, as a fault could leave them: commands never
// leave a claim taken whose workload has ended.
type records struct {
	claims    []claim.Claim
	workloads map[string]claim.WorkloadStatus
	err       error
}

func (r records) EachClaim(fn func(claim.Claim) error) error {
	for _, c := range r.claims {
		if err := fn(c); err != nil {
			return err
		}
	}
	return r.err
}

func (r records) Workload(ref claim.WorkloadRef) (claim.Workload, error) {
	status, ok := r.workloads[ref.ID]
	if !ok {
		return claim.Workload{}, claim.ErrWorkloadNotFound
	}
	return claim.Workload{Ref: ref, Status: status}, nil
}

func TestOverdueClaims(t *testing.T) {
	now := time.Now()
	of := func(workload string, s claim.State, age time.Duration) claim.Claim {
		return claim.Claim{
			Volume: ref("v-" + workload), Workload: workloadRef(workload), State: s, TakenAt: now.Add(-age),
			Index: 7,
		}
	}
	r := records{
		workloads: map[string]claim.WorkloadStatus{
			"runs": claim.Running, "ended": claim.Ended, "young": claim.Ended,
			"leaving": claim.Ended,
		},
		claims: []claim.Claim{
			of("runs", claim.Taken, time.Hour), of("ended", claim.Taken, time.Hour), of("unknown", claim.Taken, time.Hour),
			of("young", claim.Taken, time.Minute), of("leaving", claim.Unpublishing, time.Hour),
		},
	}
	items, err := overdue(t.Context(), r, now.Add(-5*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range items {
		if i.claim.To != claim.Unpublishing || i.claim.Index != 7 || i.Reason == "" || i.Since.IsZero() {
			t.Errorf("%+v", i)
		}
		got = append(got, i.claim.Workload.ID)
	}
	if !slices.Equal(got, []string{"ended", "unknown"}) {
		t.Errorf("overdue are %q", got)
	}
	broken := errors.New("broken")
	if _, err := overdue(t.Context(), records{err: broken}, now); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

// A server that stops leading, or ends, does not go through all of a big ledger first.
func TestTheLookForGarbageEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	w.volume("v")
	w.start("w", "a", "v")
	w.stop("w")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := w.ledger.Read(t.Context(), func(tx *state.ReadTx) error {
		for name, look := range map[string]func(context.Context, *state.ReadTx) error{
			"claims": func(ctx context.Context, tx *state.ReadTx) error {
				_, err := overdue(ctx, tx,
					time.Now())
				return err
			},
			"workloads": func(ctx context.Context, tx *state.ReadTx) error {
				_, err := ended(ctx, tx,
					time.Now())
				return err
			},
		} {
			if err := look(ctx, tx); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestUnusedDriversAndEndedWorkloadsAreDeleted(t *testing.T) {
	w := newWorld(t)
	w.volume("v") // names driver d
	node := claim.Node{Name: "a", BootID: "b", Drivers: map[string]claim.NodeDriver{
		"d": {ID: "d", Type: claim.Monolith}, "unused": {ID: "unused", Type: claim.Monolith},
	}}
	if _, err := cluster.Apply(t.Context(), w.ledger, &command.PutNode{Node: node}); err != nil {
		t.Fatal(err)
	}
	node.Drivers = nil
	if _, err := cluster.Apply(t.Context(), w.ledger, &command.PutNode{Node: node}); err != nil {
		t.Fatal(err)
	}
	w.start("w", "a", "v")
	w.stop("w")
	if _, err := w.Collect(t.Context(), false); err != nil { // too young, all of it
		t.Fatal(err)
	}
	if d, _ := w.known(); len(d) != 2 {
		t.Errorf("drivers %v were forgotten too early", d)
	}
	w.GC.Drivers, w.GC.Workloads = -time.Minute, -time.Minute
	if _, err := w.Collect(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	drivers, found := w.known()
	if len(drivers) != 1 || drivers[0] != "d" {
		t.Errorf("drivers %v are left, want d, which a volume names", drivers)
	}
	if !found {
		t.Error("a workload that still has a claim was forgotten")
	}
	if _, err := cluster.Apply(t.Context(), w.ledger,
		&command.AdvanceClaims{Items: []command.Advance{{
			Volume: ref("v"), Workload: workloadRef("w"),
			To: claim.Freed,
		}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Collect(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if _, found = w.known(); found {
		t.Error("an ended workload is kept")
	}
}

// Nodes are deleted that are down, hold nothing, are bound to no namespaces, and have not come back since they were
// read.
func TestDownNodesAreDeleted(t *testing.T) {
	w := newWorld(t)
	w.GC.Nodes = -time.Minute
	for _, name := range []string{"up", "down", "back", "bound"} {
		w.putNode(name, "boot")
	}
	only := []string{"dev"}
	if _, err := cluster.Apply(t.Context(), w.ledger,
		&command.SetNodeDuty{Name: "bound", Namespaces: &only}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"down", "back", "bound"} {
		if _, err := cluster.SetNodeStatus(t.Context(), w.ledger, name, claim.NodeDown, ""); err != nil {
			t.Fatal(err)
		}
	}
	found, err := w.Collect(t.Context(), true)
	if err != nil || !slices.Equal(ids(found), []string{"back", "down"}) {
		t.Fatalf("found %q, %v", ids(found), err)
	}
	w.putNode("back", "boot")
	// it is away again, for a moment
	if _, err := cluster.SetNodeStatus(t.Context(), w.ledger, "back", claim.NodeDisconnected, ""); err != nil {
		t.Fatal(err)
	}
	var forgotten []string
	w.Forget = func(_ context.Context, node string) error { // in Consul
		forgotten = append(forgotten, node)
		return errors.New("Consul is away")
	}
	gone, err := w.clearNodes(t.Context(), found)
	if err == nil || len(gone) != 0 || !slices.Equal(forgotten, ids(found)) {
		t.Errorf("while Consul is away: %q, %v, forgotten %q", ids(gone), err, forgotten)
	}
	w.Forget = nil
	gone, err = w.clearNodes(t.Context(), found)
	if err != nil || !slices.Equal(ids(gone), []string{"down"}) {
		t.Errorf("told of %q, %v", ids(gone), err)
	}
	var left []string
	err = w.ledger.Read(t.Context(), func(tx *state.ReadTx) error {
		nodes, err := tx.Nodes()
		for _, n := range nodes {
			left = append(left, n.Name)
		}
		return err
	})
	if err != nil || !slices.Equal(left, []string{"back", "bound", "up"}) {
		t.Errorf("%q are left, %v", left, err)
	}
}

func ids(all []Garbage) (out []string) {
	for _, g := range all {
		out = append(out, g.ID)
	}
	return out
}

// known lists the drivers of the ledger, and whether it has workload w.
func (w *world) known() (drivers []string, found bool) {
	w.t.Helper()
	err := w.ledger.Read(w.t.Context(), func(tx *state.ReadTx) error {
		all, err := tx.Drivers()
		for _, d := range all {
			drivers = append(drivers, d.ID)
		}
		if _, werr := tx.Workload(workloadRef("w")); werr == nil {
			found = true
		} else if !errors.Is(werr, claim.ErrWorkloadNotFound) {
			return werr
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return drivers, found
}
