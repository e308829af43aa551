package clusterbench

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/clustertest"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/fencing/heartbeat"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testbin"
)

// BenchmarkGrowth measures the same quantities at growing sizes, for `make bench-plots`. A section's title is the size.
func BenchmarkGrowth(b *testing.B) {
	testbin.RequireRoot(b, "what grows")
	measure.Section(b, "volumes", "volumes", func(b *testing.B, r *table.Section) {
		grow(b, r, []int{100, 1_000, 10_000, 100_000, 1_000_000},
			func(ctx context.Context, n *clustertest.Server, i int) error {
				_, err := n.RegisterVolume(ctx, volume(i, "shared"))
				return err
			})
	})
	measure.Section(b, "nodes", "nodes", func(b *testing.B, r *table.Section) {
		grow(b, r, []int{10, 100, 1_000, 10_000}, func(ctx context.Context, n *clustertest.Server, i int) error {
			_, err := n.PutNode(ctx, scaleNode(i))
			return err
		})
	})
}

// base is how many volumes and nodes there are at all sizes.
const base = 10

// grow adds to one server's ledger in this process until it has each of the sizes, and measures it there.
func grow(
	b *testing.B, r *table.Section, sizes []int, add func(ctx context.Context, n *clustertest.Server, i int) error,
) {
	b.Helper()
	n := clustertest.Start(b)
	ctx := b.Context()
	for i := range base {
		_, err := n.PutNode(ctx, scaleNode(i))
		if err == nil {
			_, err = n.RegisterVolume(ctx, volume(i, "shared"))
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	had := base
	for turn := range measure.Turns(len(sizes), 2*time.Minute) {
		size := sizes[turn]
		if err := parallel(size-had, registering, func(i int) error { return add(ctx, n, had+i) }); err != nil {
			b.Fatal(err)
		}
		had = size
		claimed, released := claimAndRelease(b, n)
		var nodes []claim.Node
		err := n.Read(ctx, func(tx *state.ReadTx) (err error) { nodes, err = tx.Nodes(); return err })
		if err != nil {
			b.Fatal(err)
		}
		answers := answerRate(b, n, len(nodes))
		beats := float64(len(nodes)) / lease.Default.HeartbeatTTL.Seconds() * 3 // due in a second
		nodes = nil
		var heap runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&heap)
		var restarts table.Samples
		for range measure.Turns(5, 20*time.Second) {
			at := time.Now()
			n.Restart(b)
			restarts = append(restarts, time.Since(at))
		}
		rows := []table.Row{
			claimed.Row("claim, p50", 0.5).Most(1.5),
			released.Row("release in the ledger, p50", 0.5).Most(1.5),
			{What: "heartbeats of all nodes, share of a server", Value: 100 * beats / answers, Unit: "%", AtMost: 50},
			{What: "memory in use", Value: float64(heap.HeapAlloc) / (1 << 20), Unit: "MiB", AtMost: 1024},
			restarts.Row("restart of the ledger, p50", 0.5).In("s", 0.001).Most(5),
		}
		for _, row := range rows {
			row.At = float64(size)
			r.Add(row)
		}
	}
}

// claimAndRelease claims volumes one after the other, and frees them again.
func claimAndRelease(b *testing.B, n *clustertest.Server) (claimed, released table.Samples) {
	b.Helper()
	ctx := b.Context()
	for i := range 600 {
		i %= base
		at := time.Now()
		run := claim.Run{Ref: workloadRef(i), Node: nodeName(i)}
		if _, err := n.StartWorkload(ctx, run, []claim.Claim{wanted(i)}); err != nil {
			b.Fatal(err)
		}
		between := time.Now()
		_, err := n.EndWorkload(ctx, workloadRef(i))
		if err == nil {
			_, err = n.AdvanceClaims(ctx, "",
				command.Advance{Volume: volumeRef(i), Workload: workloadRef(i), To: claim.Freed})
		}
		if err != nil {
			b.Fatal(err)
		}
		claimed, released = append(claimed, between.Sub(at)), append(released, time.Since(between))
	}
	return claimed, released
}

// answerRate is how many heartbeats per second the leader's tracker answers, 64 at a time.
func answerRate(b *testing.B, n *clustertest.Server, nodes int) float64 {
	b.Helper()
	beats := &heartbeat.Tracker{Cluster: n.Node, Log: hclog.NewNullLogger(), Liveness: claim.Liveness{
		HeartbeatTTL: time.Hour, StopAfter: time.Hour, Margin: time.Hour,
	}}
	ctx, cancel := context.WithCancel(b.Context())
	tracked := make(chan struct{})
	go func() {
		defer close(tracked)
		n.WhileLeader(ctx, beats.Run)
	}()
	defer func() { cancel(); <-tracked }()
	for late := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		_, err := beats.Answer(ctx, nodeName(0), "boot")
		if err == nil {
			break
		}
		if time.Now().After(late) {
			b.Fatalf("heartbeats are not answered: %v", err)
		}
	}
	return beatRate(ctx, b, beats, nodes)
}
