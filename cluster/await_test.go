package cluster_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// ledgers are both ways to one ledger: the server's, and that of an agent without one.
func ledgers(t *testing.T) map[string]cluster.Ledger {
	c := clustertest.Form(t, 1, clustertest.Options{})
	return map[string]cluster.Ledger{"server": c.WaitLeader(t), "client": c.Client()}
}

// TestARelease follows a workload's claims until they are gone.
func TestARelease(t *testing.T) {
	t.Parallel()
	for name, l := range ledgers(t) {
		t.Run(name, func(t *testing.T) {
			ctx := within(t)
			register(t, l, "v-"+name)
			v, w := volume("v-"+name), workload("w-"+name)
			check.NoError(t, cluster.AwaitEnded(ctx, l, w))
			started, err := cluster.Apply(ctx, l,
				command.Start(claim.Run{Ref: w, Node: "n1"}, []claim.Claim{want(v, claim.Write)}))
			check.NoError(t, err)
			held, run := started.Claims, started.Workload.CreateIndex
			on, err := cluster.OnNode(ctx, l, "n1")
			if err != nil || len(on.Workloads) != 1 || on.Workloads[0].Ref != w || len(on.Claims) != 1 {
				t.Errorf("on the node: %+v, %v", on, err)
			}
			now := func() []claim.Claim {
				claims, _, err := cluster.Ask(ctx, l, &command.QueryClaims{Workload: w}, cluster.Blocking{})
				check.NoError(t, err)
				return claims
			}

			// A command about another claim, or another run, does nothing.
			stale, elsewhere := held[0], held[0]
			stale.Index--
			elsewhere.Node = "n2"
			check.NoError(t, cluster.NodeDetached(ctx, l, []claim.Claim{stale, elsewhere}))
			check.NoError(t, cluster.AwaitFreed(ctx, l, w, []claim.Claim{stale, elsewhere}))
			for _, other := range []claim.Run{{Ref: w, Node: "n2"}, {Ref: w, Node: "n1", Index: run + 1}} {
				_, err := cluster.Apply(ctx, l, command.End(other))
				check.NoError(t, err)
			}
			if claims := now(); len(claims) != 1 || claims[0].State != claim.Taken {
				t.Fatalf("%+v", claims)
			}

			var waiting sync.WaitGroup
			freed := make(chan struct{})
			await := func(what string, wait func() error) {
				waiting.Go(func() {
					check.NoError(t, wait())
					select {
					case <-freed:
					default:
						t.Errorf("%s before it was free", what)
					}
				})
			}
			await("freed", func() error { return cluster.AwaitFreed(ctx, l, w, held) })
			await("ended", func() error { return cluster.AwaitEnded(ctx, l, w) })
			_, err = cluster.Apply(ctx, l, command.End(claim.Run{Ref: w, Node: "n1", Index: run}))
			check.NoError(t, err)
			check.NoError(t, cluster.NodeDetached(ctx, l, held))
			check.NoError(t, cluster.NodeDetached(ctx, l, held))
			if claims := now(); len(claims) != 1 || claims[0].State != claim.NodeDetached {
				t.Fatalf("%+v", claims)
			}
			close(freed)
			_, err = cluster.Apply(ctx, l, &command.AdvanceClaims{
				Items: []command.Advance{{Volume: v.VolumeRef, Workload: w, To: claim.Freed}},
			})
			check.NoError(t, err)
			waiting.Wait()
			if on, err := cluster.OnNode(ctx, l, "n1"); err != nil || len(on.Workloads)+len(on.Claims) != 0 {
				t.Errorf("left on the node: %+v, %v", on, err)
			}
		})
	}
}

func TestWaitingEndsWithTheCaller(t *testing.T) {
	t.Parallel()
	for name, l := range ledgers(t) {
		register(t, l, "v")
		w := workload("w")
		started, err := cluster.Apply(within(t), l,
			command.Start(claim.Run{Ref: w, Node: "n1"}, []claim.Claim{want(volume("v"), claim.Write)}))
		check.NoError(t, err)
		gone := errors.New("the caller is gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		var waiting sync.WaitGroup
		for what, wait := range map[string]func() error{
			"freed": func() error { return cluster.AwaitFreed(ctx, l, w, started.Claims) },
			"ended": func() error { return cluster.AwaitEnded(ctx, l, w) },
		} {
			waiting.Go(func() {
				if err := wait(); !errors.Is(err, gone) {
					t.Errorf("%s, %s: %v", name, what, err)
				}
			})
		}
		cancel(gone)
		waiting.Wait()
	}
}
