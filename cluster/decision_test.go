package cluster_test

import (
	"context"
	"errors"
	"testing"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// deciding returns the context of a leader's decisions without its cancellation. A deposed leader may act on
// a decision until it notices that it was deposed.
func deciding(t *testing.T, leader *clustertest.Host) context.Context {
	t.Helper()
	ctx, stop := context.WithCancel(within(t))
	var got context.Context
	leader.WhileLeader(ctx, func(leading context.Context) {
		got = context.WithoutCancel(leading)
		stop()
	})
	if got == nil {
		t.Fatalf("%s does not lead", leader.Name)
	}
	return got
}

// TestDecisionOfADeposedLeader: a leader's decision is applied in its own term or never, whether the leader
// was cut off when it decided, has a successor, or leads again.
func TestDecisionOfADeposedLeader(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	c.WaitVoters(t, names(c.Hosts())...)
	old := c.WaitLeader(t)
	register(t, old, "a")
	if _, err := cluster.Apply(within(t), old,
		&command.PutNode{Node: claim.Node{Name: "n", BootID: "boot"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Apply(within(t), old,
		command.Start(claim.Run{Ref: workload("db"), Node: "n"}, []claim.Claim{want(volume("a"),
			claim.Write)})); err != nil {
		t.Fatal(err)
	}
	promise := claim.Liveness{HeartbeatTTL: 1, StopAfter: 2, Margin: 3}
	ctx := deciding(t, old)
	refused := func(what string) {
		t.Helper()
		_, err := cluster.SetNodeStatus(ctx, old, "n", claim.NodeDown, "")
		if !errors.Is(err, command.ErrNotLeader) && !errors.Is(err, command.ErrUncertain) {
			t.Errorf("%s, it releases a node's claims: %v", what, err)
		}
		if _, err := cluster.Apply(ctx, old,
			&command.PutLiveness{Liveness: promise}); !errors.Is(err, command.ErrNotLeader) &&
			!errors.Is(err, command.ErrUncertain) {
			t.Errorf("%s, it changes the promised lease: %v", what, err)
		}
	}
	stands := func(what string) {
		t.Helper()
		leader := c.WaitLeader(t)
		err := leader.ReadLatest(within(t), func(tx *state.ReadTx) error {
			n, err := tx.Node("n")
			held, err2 := tx.Claims(volume("a").VolumeRef)
			now, _, err3 := tx.Liveness()
			if !n.Ready() || len(held) != 1 || held[0].State != claim.Taken || now == promise {
				t.Errorf("%s: the node is %q, its claims are %+v, nodes are promised %+v", what, n.Status, held, now)
			}
			return errors.Join(err, err2, err3)
		})
		if err != nil && !errors.Is(err, command.ErrNotLeader) {
			t.Fatal(err)
		}
	}

	c.Partition(old.Name)
	decided := make(chan struct{})
	go func() {
		defer close(decided)
		refused("cut off")
	}()
	clustertest.Eventually(t, "another server leads", func() bool {
		leader := c.Leader()
		return leader != nil && leader != old
	})
	c.Heal()
	<-decided
	stands("after it was cut off")

	refused("with a successor")
	stands("with a successor")

	clustertest.Eventually(t, "it leads again", func() bool {
		if leader := c.WaitLeader(t); leader != old {
			_ = leader.TransferLeadership(within(t), old.Name) // repeat until it succeeds
		}
		return old.Leader()
	})
	refused("in a later term")
	stands("in a later term")

	// In its own term the decision is applied.
	if _, err := cluster.SetNodeStatus(deciding(t, old), old, "n", claim.NodeDown, ""); err != nil {
		t.Errorf("the present leader: %v", err)
	}
	everywhereDown(t, c, "n")
}

// everywhereDown waits until a node is down in the ledgers of all servers.
func everywhereDown(t *testing.T, c *clustertest.Cluster, name string) {
	t.Helper()
	for _, h := range c.Up() {
		clustertest.Eventually(t, h.Name+" has "+name+" as down", func() bool {
			n, _, err := readNode(t, h.Node, name)
			return err == nil && n.Status == claim.NodeDown
		})
	}
}

func readNode(t *testing.T, on *cluster.Node, name string) (n claim.Node, index uint64, err error) {
	t.Helper()
	err = on.Read(within(t), func(tx *state.ReadTx) (err error) {
		n, err = tx.Node(name)
		return err
	})
	return n, n.ModifyIndex, err
}
