package clusterbench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

const (
	releases = 1000
	// atOnce is the number of concurrent calls that the leader makes to one driver.
	atOnce = 16
)

// measureRelease lets a node claim and attach 1,000 volumes, and an operator vouch that it is down. Its
// claims are free when the driver has detached each volume and the ledger has recorded that. Before that, it
// measures the driver alone, called directly on its socket.
func measureRelease(b *testing.B, r *table.Section) {
	volumes := filepath.Join(b.TempDir(), "volumes")
	s := form(b, fmt.Sprintf(`
csi_driver "shared" {
  command = [%q, "-endpoint", "${endpoint}", "-node-id", "${node.name}", "-dir", %q]
}
`, testbin.Build(b, "test/lib/shareddriver"), volumes))
	for _, h := range s.all {
		h.AwaitDrivers()
	}
	ctx, cancel := context.WithTimeout(b.Context(), 5*patience)
	defer cancel()
	const name = "node-1"
	// The driver must know that node, too.
	check.NoError(b, os.WriteFile(filepath.Join(volumes, ".nodes", name), nil, 0o600))
	socket := s.leader(b).Path("data/csi/shared/csi.sock")
	operator := s.operator(b)
	alone := detachAlone(ctx, b, dialSocket(b, socket), name)
	err := parallel(releases, atOnce, func(i int) error { return register(ctx, operator, i, "shared") })
	check.NoError(b, err)

	n := s.agent(b, pki.Node, name)
	_, err = cluster.Apply(ctx, n, &command.PutNode{Node: claim.Node{
		Name: n.name, SecretHash: n.secret.Hash(),
		Drivers: map[string]claim.NodeDriver{"shared": {
			ID: "shared", Type: claim.Monolith, Healthy: true, NodeID: n.name,
			Controller: &claim.ControllerCapabilities{AttachDetach: true}, Node: &claim.NodeCapabilities{},
		}},
	}})
	check.NoError(b, err)
	n.live(b)
	err = parallel(releases, atOnce, func(i int) error {
		if err := take(ctx, n, i, n.name); err != nil {
			return err
		}
		_, err := n.Attach(ctx, claim.Volume{Definition: claim.Definition{VolumeRef: volumeRef(i)}},
			claim.Capability{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}, n.name)
		return err
	})
	check.NoError(b, err)
	before := s.use(b)
	at := time.Now()
	if _, err := cluster.SetNodeStatus(ctx, operator, n.name, claim.NodeDown, "the benchmark"); err != nil {
		b.Fatal(err)
	}
	// One claim is watched, then one of those that are left, and so on: to ask for each of them, or again and again for
	// all, would take longer than their release.
	for left := []claim.Claim{{Workload: workloadRef(releases - 1)}}; len(left) > 0; {
		watched := left[len(left)/2].Workload
		for index, claims := uint64(0), left; len(claims) > 0; {
			claims, index, err = cluster.Ask(ctx, operator,
				&command.QueryClaims{Workload: watched}, cluster.Blocking{MinIndex: index, Wait: patience})
			check.NoError(b, err)
		}
		there, _, err := cluster.Ask(ctx, operator, &command.QueryOnNode{Node: n.name}, cluster.Blocking{})
		check.NoError(b, err)
		left = there.Claims
	}
	took := time.Since(at)
	used := s.use(b).since(before)
	r.Add(
		table.Row{What: "a node is down → its 1,000 claims are free", Value: took.Seconds(), Unit: "s"},
		table.Row{What: "the driver alone detaches as many volumes", Value: alone.Seconds(), Unit: "s"},
		table.Row{What: "the first over the second", Value: took.Seconds() / alone.Seconds(), AtMost: 15},
		table.Row{What: "CPU time of the three agents meanwhile", Value: used.servers.Seconds(), Unit: "s"},
	)
}

// dialSocket connects to a driver's socket.
func dialSocket(b *testing.B, socket string) *grpc.ClientConn {
	b.Helper()
	conn := check.Must(grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())))(b)
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

// detachAlone creates all volumes and returns how long it takes to have the driver detach them over a connection.
func detachAlone(ctx context.Context, b *testing.B, conn *grpc.ClientConn, node string) time.Duration {
	b.Helper()
	controller := csi.NewControllerClient(conn)
	writer := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
	err := parallel(releases, atOnce, func(i int) error {
		_, err := controller.CreateVolume(ctx, &csi.CreateVolumeRequest{
			Name: volumeRef(i).ID, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20},
			VolumeCapabilities: []*csi.VolumeCapability{writer},
		})
		if err == nil {
			_, err = controller.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
				VolumeId: volumeRef(i).ID, NodeId: node, VolumeCapability: writer,
			})
		}
		return err
	})
	check.NoError(b, err)
	at := time.Now()
	err = parallel(releases, atOnce, func(i int) error {
		_, err := controller.ControllerUnpublishVolume(ctx,
			&csi.ControllerUnpublishVolumeRequest{VolumeId: volumeRef(i).ID, NodeId: node})
		return err
	})
	check.NoError(b, err)
	return time.Since(at)
}
