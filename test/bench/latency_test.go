package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testhost"
)

const (
	warmUp = 10
	rounds = 300
)

// measureLatency alternates between starting and stopping workloads through the API, and making the same CSI
// calls directly on the driver's socket.
func measureLatency(b *testing.B, r *table.Section) {
	ctx := b.Context()
	h := newHost(b)
	h.Start()
	pannier := caller{b, h.Client()}
	pannier.create(ctx, "pannier")
	direct := newDirect(b, dialDriver(b, h), pannier.create(ctx, "direct"))

	var start, stop, stage, unstage table.Samples
	for n := range measure.Turns(warmUp+rounds, 30*time.Second) {
		if n == warmUp {
			start, stop, stage, unstage = nil, nil, nil, nil
		}
		start = append(start, took(b)(pannier.start(ctx, "pannier")))
		stop = append(stop, took(b)(pannier.stop(ctx, "pannier")))
		stage = append(stage, took(b)(direct.stagePublish(ctx)))
		unstage = append(unstage, took(b)(direct.unpublishUnstage(ctx)))
	}
	r.Add(
		start.Row("claim → published, p50", 0.5),
		start.Row("claim → published, p99", 0.99),
		stage.Row("stage and publish alone, p50", 0.5),
		stage.Row("stage and publish alone, p99", 0.99),
		table.Minus("added by Pannier to a start, p50", start.Row("", 0.5), stage.Row("", 0.5)).Most(5),
		stop.Row("release, p50", 0.5),
		stop.Row("release, p99", 0.99),
		unstage.Row("unpublish and unstage alone, p50", 0.5),
		unstage.Row("unpublish and unstage alone, p99", 0.99),
		table.Minus("added by Pannier to a release, p50", stop.Row("", 0.5), unstage.Row("", 0.5)).Most(5),
	)
	measureSyncs(b, r, pannier, h.PID())
}

// measureSyncs counts the agent's system calls that wait for the disk.
func measureSyncs(b *testing.B, r *table.Section, pannier caller, pid int) {
	const together = 16
	for n := range together {
		pannier.create(b.Context(), fmt.Sprint("sync-", n))
	}
	all := func(do func(ctx context.Context, volume string) (time.Duration, error)) {
		var wg sync.WaitGroup
		for n := range together {
			wg.Go(func() {
				if _, err := do(b.Context(), fmt.Sprint("sync-", n)); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	}
	all(pannier.start) // makes the file systems
	all(pannier.stop)
	one := func(do func(ctx context.Context, volume string) (time.Duration, error)) func() {
		return func() {
			for n := range together {
				took(b)(do(b.Context(), fmt.Sprint("sync-", n)))
			}
		}
	}
	perOne := func(do func()) float64 { return float64(countSyncs(b, pid, do)) / together }
	r.Add(
		table.Row{What: "fsyncs of the agent for a start, one by one", Value: perOne(one(pannier.start)), AtMost: 2},
		table.Row{What: "fsyncs of the agent for a release, one by one", Value: perOne(one(pannier.stop))},
		table.Row{
			What: "fsyncs of the agent for a start, 16 at once", Value: perOne(func() { all(pannier.start) }),
			AtMost: 2,
		},
		table.Row{What: "fsyncs of the agent for a release, 16 at once", Value: perOne(func() { all(pannier.stop) })},
	)
}

// took returns a function that fails the benchmark if a call failed.
func took(b *testing.B) func(time.Duration, error) time.Duration {
	return func(d time.Duration, err error) time.Duration {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
		return d
	}
}

// direct makes CSI calls on a driver's socket, without Pannier.
type direct struct {
	csi.NodeClient
	volume, staging, target string
	capability              *csi.VolumeCapability
}

func driverSocket(h *testhost.Host) string { return h.Path("data/csi/local/csi.sock") }

// dialDriver connects to the socket of csi-local.
func dialDriver(b *testing.B, h *testhost.Host) *grpc.ClientConn {
	b.Helper()
	return dial(b, driverSocket(h))
}

func dial(b *testing.B, socket string) *grpc.ClientConn {
	b.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := conn.Close(); err != nil {
			b.Error(err)
		}
	})
	return conn
}

func newDirect(b *testing.B, conn *grpc.ClientConn, volume string) *direct {
	b.Helper()
	dir, err := os.MkdirTemp("", "pt-")
	if err != nil {
		b.Fatal(err)
	}
	d := &direct{
		NodeClient: csi.NewNodeClient(conn), volume: volume,
		staging: filepath.Join(dir, "staging"), target: filepath.Join(dir, "target"),
		capability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	}
	if err := os.Mkdir(d.staging, 0o700); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_, _ = d.unpublishUnstage(context.Background()) // it may be down already
		if err := os.RemoveAll(dir); err != nil {
			b.Error(err)
		}
	})
	return d
}

func (d *direct) stagePublish(ctx context.Context) (time.Duration, error) {
	at := time.Now()
	_, err := d.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: d.volume, StagingTargetPath: d.staging, VolumeCapability: d.capability,
	})
	if err != nil {
		return 0, err
	}
	_, err = d.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: d.volume, StagingTargetPath: d.staging, TargetPath: d.target, VolumeCapability: d.capability,
	})
	return time.Since(at), err
}

func (d *direct) unpublishUnstage(ctx context.Context) (time.Duration, error) {
	at := time.Now()
	_, err := d.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: d.volume, TargetPath: d.target})
	if err != nil {
		return 0, err
	}
	_, err = d.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: d.volume, StagingTargetPath: d.staging})
	return time.Since(at), err
}
