package cluster_test

import (
	"context"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/clustertest"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// A server that decides to free a claim, loses the lead and leads again does not free it: its decision was another
// term's. The node's report is applied.
func TestFreeingIsOfOneTerm(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	c.WaitVoters(t, names(c.Hosts())...)
	leader := c.WaitLeader(t)
	register(t, leader, "a", "b")
	run := claim.Run{Ref: workload("db"), Node: "n"}
	got, err := leader.StartWorkload(within(t), run,
		[]claim.Claim{want(volume("a"), claim.Write), want(volume("b"), claim.Write)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leader.EndRun(within(t), run); err != nil {
		t.Fatal(err)
	}
	deposed, freed := false, 0
	leader.OnUnmounted(func(_ context.Context, item command.Advance) func() {
		if deposed = item.Volume.ID == "a"; deposed {
			term := leader.Term()
			clustertest.Eventually(t, "it leads in another term", func() bool {
				if now := c.WaitLeader(t); now != leader {
					_ = now.TransferLeadership(within(t), leader.Name) // repeat until it succeeds
				} else if leader.Term() == term {
					_ = leader.TransferLeadership(within(t), "")
				}
				return leader.Term() > term
			})
		}
		return func() { freed++ }
	})
	for i, want := range []claim.State{claim.NodeDetached, claim.Freed} {
		item := command.Advance{
			Volume: got.Claims[i].Volume, Workload: run.Ref, Index: got.Claims[i].Index, To: claim.NodeDetached,
		}
		if _, err := leader.AdvanceClaims(within(t), "", item); err != nil {
			t.Fatal(err)
		}
		is := claim.Freed
		err := leader.ReadLatest(within(t), func(tx *state.ReadTx) error {
			held, err := tx.Claims(item.Volume)
			if len(held) > 0 {
				is = held[0].State
			}
			return err
		})
		if err != nil || is != want || freed != i {
			t.Errorf("volume %q: the claim is %s, want %s; told of %d; %v", item.Volume, is, want, freed, err)
		}
	}
}
