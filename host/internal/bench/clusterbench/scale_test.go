package clusterbench

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/fencing/heartbeat"
	"github.com/pannier/pannier/host/internal/peer/noderecord"
	"github.com/pannier/pannier/host/internal/peer/watcher"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// claimedOf is the share of the volumes that workloads have claimed.
const claimedOf = 10

// measureScale simulates a cluster that grows, in a full run to 10,000 nodes and 1,000,000 volumes, a tenth of them
// claimed: one server's ledger in this process, with what the leader's loops read of it. There are no agents and no
// drivers.
func measureScale(b *testing.B, r *table.Section) {
	n := clustertest.Start(b)
	// Nobody sends heartbeats while it grows.
	patient := claim.Liveness{HeartbeatTTL: time.Hour, StopAfter: time.Hour, Margin: time.Hour}
	beats := &heartbeat.Tracker{Cluster: n.Node, Liveness: patient, Log: hclog.NewNullLogger()}
	ctx, cancel := context.WithCancel(b.Context())
	tracked := make(chan struct{})
	go func() {
		defer close(tracked)
		n.WhileLeader(ctx, beats.Run)
	}()
	stop := func() { cancel(); <-tracked }
	b.Cleanup(stop)
	w := watcher.New(watcher.Config{Cluster: n.Node, Log: hclog.NewNullLogger(), GC: watcher.GC{
		Claims: time.Hour, Drivers: time.Hour, Workloads: time.Hour,
	}})
	drivers := &noderecord.Directory{Cluster: n.Node}
	had := struct{ nodes, volumes int }{}
	sizes := []struct{ nodes, volumes int }{{100, 10_000}, {1_000, 100_000}, {10_000, 1_000_000}}
	if !measure.Full() {
		sizes = sizes[:2]
	}
	for _, size := range sizes {
		must := func(err error) {
			b.Helper()
			check.NoError(b, err)
		}
		must(parallel(size.nodes-had.nodes, registering, func(i int) error {
			_, err := cluster.Apply(ctx, n, &command.PutNode{Node: scaleNode(had.nodes + i)})
			return err
		}))
		at := time.Now()
		must(parallel(size.volumes-had.volumes, registering, func(i int) error {
			i += had.volumes
			if _, err := cluster.Apply(ctx, n,
				&command.RegisterVolume{Volume: volume(i, "shared")}); err != nil || i%claimedOf != 0 {
				return err
			}
			run := claim.Run{Ref: workloadRef(i), Node: nodeName(i % size.nodes), ID: fmt.Sprint("run-", i)}
			_, err := cluster.Apply(ctx, n, command.Start(run, []claim.Claim{wanted(i)}))
			return err
		}))
		commands := size.volumes - had.volumes + (size.volumes-had.volumes)/claimedOf
		rate := float64(commands) / time.Since(at).Seconds()
		had.nodes, had.volumes = size.nodes, size.volumes

		var heap runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&heap)
		answers := beatRate(ctx, b, beats, size.nodes)
		took := func(do func() error) float64 {
			b.Helper()
			at := time.Now()
			must(do())
			return time.Since(at).Seconds()
		}
		nodes := took(func() error {
			return n.Read(ctx, func(tx *state.ReadTx) error { _, err := tx.Nodes(); return err })
		})
		first := took(func() error { _, err := drivers.Driver("shared"); return err })
		gc := took(func() error { _, err := w.Collect(ctx, true); return err })
		var backup bytes.Buffer
		saved := took(func() error { _, err := n.Save(ctx, &backup); return err })
		length := float64(backup.Len()) / (1 << 20)
		backup = bytes.Buffer{}

		what := func(s string) string { return fmt.Sprintf("%d nodes, %d volumes: %s", size.nodes, size.volumes, s) }
		r.Add(
			table.Row{What: what("commands per second while it grew"), Value: rate, Unit: "/s"},
			table.Row{What: what("the ledger on disk"), Value: float64(n.Size()) / (1 << 20), Unit: "MiB"},
			table.Row{What: what("heap in use"), Value: float64(heap.HeapAlloc) / (1 << 20), Unit: "MiB"},
			table.Row{
				What: what("heartbeats answered per second"), Value: answers, Unit: "/s",
				AtLeast: float64(size.nodes) / 10,
			},
			table.Row{What: what("read all nodes"), Value: 1000 * nodes, Unit: "ms"},
			table.Row{What: what("decode a driver of all nodes"), Value: 1000 * first, Unit: "ms"},
			table.Row{What: what("look for garbage"), Value: 1000 * gc, Unit: "ms"},
			table.Row{What: what("save a backup"), Value: saved, Unit: "s"},
			table.Row{What: what("a backup"), Value: length, Unit: "MiB"},
		)
	}
	stop()
	at := time.Now()
	n.Restart(b)
	r.Add(table.Row{What: "restart of that server's ledger", Value: time.Since(at).Seconds(), Unit: "s"})
}

// scaleNode is the record of a node with one driver.
func scaleNode(i int) claim.Node {
	return claim.Node{
		Name: nodeName(i), BootID: "boot", Address: "10.0.0.1:4650",
		Attributes: map[string]string{"kernel": "6.18", "arch": "amd64"},
		Drivers: map[string]claim.NodeDriver{"shared": {
			ID: "shared", Type: claim.Monolith, Healthy: true, NodeID: nodeName(i), Provider: "shared", Version: "1.0",
			Controller: &claim.ControllerCapabilities{AttachDetach: true}, Node: &claim.NodeCapabilities{StageUnstage: true},
		}},
	}
}

// beatRate is how many heartbeats per second are answered when each node sends at least three, 64 at a time.
func beatRate(ctx context.Context, b *testing.B, beats *heartbeat.Tracker, nodes int) float64 {
	b.Helper()
	all := max(3*nodes, 3000)
	at := time.Now()
	err := parallel(all, 64, func(i int) error {
		_, err := beats.Answer(ctx, nodeName(i%nodes), "boot")
		return err
	})
	check.NoError(b, err)
	return float64(all) / time.Since(at).Seconds()
}
