package cluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// Blocking reads return when something that they read changes, and not when something else does.
func TestReadsWaitForAChange(t *testing.T) {
	s := clustertest.Start(t)
	put := func(name, boot string) {
		t.Helper()
		if _, err := cluster.Apply(t.Context(), s,
			&command.PutNode{Node: claim.Node{Name: name, BootID: boot}}); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "1")
	topics := []state.Topic{state.TopicNode("a")}
	type read func(context.Context, cluster.Blocking, []state.Topic, func(*state.ReadTx) error) (uint64, error)
	for name, do := range map[string]read{"on the leader": s.ReadChanged, "here": s.ReadHere} {
		t.Run(name, func(t *testing.T) {
			var boot string
			look := func(tx *state.ReadTx) error {
				n, err := tx.Node("a")
				boot = n.BootID
				return err
			}
			index, err := do(t.Context(), cluster.Blocking{}, topics, look)
			if err != nil || index == 0 {
				t.Fatal(index, err)
			}
			before := boot
			answered := make(chan uint64, 1)
			go func() {
				next, err := do(t.Context(), cluster.Blocking{MinIndex: index, Wait: time.Minute}, topics, look)
				if err != nil {
					t.Error(err)
				}
				answered <- next
			}()
			put("b", before+"b")
			select {
			case <-answered:
				t.Error("returned although nothing that it reads has changed")
			case <-time.After(50 * time.Millisecond):
			}
			put("a", before+"2")
			if next := <-answered; next <= index || boot != before+"2" {
				t.Errorf("index %d after %d, boot %q", next, index, boot)
			}
			// A read also returns when the wait is over, or when the caller gives up.
			index, err = do(t.Context(), cluster.Blocking{MinIndex: 1 << 40, Wait: time.Millisecond}, topics, look)
			if err != nil || index == 0 {
				t.Error(index, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := do(ctx, cluster.Blocking{MinIndex: 1 << 40, Wait: time.Minute}, topics, look); err == nil {
				t.Error("answered a caller that gave up")
			}
		})
	}
}
