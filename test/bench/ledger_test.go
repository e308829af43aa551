package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/clustertest"
)

const (
	fewVolumes  = 100
	manyVolumes = 100_000
)

// measureLedger calls cluster.Node in this process: claims without the other work of a node. Each claim is
// the start of a workload, which is one entry in raft's log.
func measureLedger(b *testing.B, r *table.Section) {
	few, many := clustertest.Start(b).Node, clustertest.Start(b).Node
	fill(b, few, fewVolumes, "")
	fill(b, many, manyVolumes, "")

	const rounds = 2000
	var small, large table.Samples
	for n := range measure.Turns(rounds, 15*time.Second) {
		small = append(small, claimAndFree(b, few, n%fewVolumes))
		large = append(large, claimAndFree(b, many, n*(manyVolumes/rounds)))
	}
	r.Add(
		small.Row("a claim with 100 volumes in the ledger, p50", 0.5),
		large.Row("a claim with 100,000 volumes in the ledger, p50", 0.5),
		table.Over("the second over the first", large.Row("", 0.5), small.Row("", 0.5)).Most(1.2),
	)

	const turns = 6
	next := 0
	for _, load := range []struct{ clients, claims int }{{1, 4000}, {16, 16_000}, {256, 60_000}} {
		var rates []float64
		for range measure.Turns(turns, 15*time.Second) {
			rates = append(rates, claimRate(b, many, next, load.claims/turns, load.clients))
			next += load.claims / turns
		}
		r.Add(table.Of(fmt.Sprintf("claims per second, clients: %d", load.clients), "/s", rates))
	}
}

// fill registers volumes. If a node is given, a workload on it claims each of them.
func fill(b *testing.B, n *cluster.Node, volumes int, node string) {
	b.Helper()
	parallel(b, volumes, 256, func(i int) error {
		_, err := cluster.Apply(b.Context(), n, &command.RegisterVolume{Volume: claim.Volume{
			Definition: claim.Definition{
				VolumeRef: volumeRef(i), Name: volumeRef(i).ID, PluginID: "local", ExternalID: volumeRef(i).ID,
				Capabilities: []claim.Capability{{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}},
			},
		}})
		if err != nil || node == "" {
			return err
		}
		return take(b.Context(), n, i, node)
	})
}

// claimRate claims volumes, beginning with number first, each for a separate workload.
func claimRate(b *testing.B, n *cluster.Node, first, claims, clients int) float64 {
	b.Helper()
	at := time.Now()
	parallel(b, claims, clients, func(i int) error { return take(b.Context(), n, first+i, "a") })
	return float64(claims) / time.Since(at).Seconds()
}

// claimAndFree returns how long the claim took.
func claimAndFree(b *testing.B, n *cluster.Node, i int) time.Duration {
	b.Helper()
	at := time.Now()
	err := take(b.Context(), n, i, "a")
	took := time.Since(at)
	if err == nil {
		_, err = cluster.Apply(b.Context(), n, command.End(claim.Run{Ref: workloadRef(i)}))
	}
	if err == nil {
		_, err = cluster.Apply(b.Context(), n,
			&command.AdvanceClaims{Items: []command.Advance{{
				Volume: volumeRef(i), Workload: workloadRef(i),
				To: claim.Freed,
			}}})
	}
	if err != nil {
		b.Fatal(err)
	}
	return took
}

func take(ctx context.Context, n *cluster.Node, i int, node string) error {
	_, err := cluster.Apply(ctx, n, command.Start(claim.Run{Ref: workloadRef(i), Node: node}, []claim.Claim{{
		Volume: volumeRef(i), Mode: claim.Write, AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem,
	}}))

	return err
}

func volumeRef(i int) claim.VolumeRef {
	return claim.VolumeRef{Namespace: "default", ID: fmt.Sprintf("volume-%06d", i)}
}

func workloadRef(i int) claim.WorkloadRef {
	return claim.WorkloadRef{Namespace: "default", ID: fmt.Sprintf("workload-%06d", i)}
}

// parallel calls do for each number below n once, from a number of goroutines.
func parallel(b *testing.B, n, goroutines int, do func(i int) error) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && !b.Failed(); i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
}
