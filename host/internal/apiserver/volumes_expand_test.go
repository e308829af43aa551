package apiserver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/workload"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

// nodesFake are other nodes, with what they were asked to grow.
type nodesFake struct {
	mu    sync.Mutex
	grown []string
	fail  error
}

func (f *nodesFake) ExpandVolume(_ context.Context, node string, v claim.Volume, minBytes, _ int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.grown = append(f.grown, fmt.Sprintf("%s %s %d", node, v.VolumeRef, minBytes))
	return 1, f.fail
}

func (f *nodesFake) Release(context.Context, claim.Claim) (workload.Release, error) {
	return workload.Release{}, errors.New("no such call here")
}

func (f *nodesFake) VolumeStats(context.Context, string, claim.Volume) (storage.Stats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return storage.Stats{Usage: []storage.Usage{{Unit: storage.Bytes, Total: 100, Used: 7}}}, f.fail
}

func (f *nodesFake) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail, f.grown = err, nil
}

func TestVolumeMountedElsewhere(t *testing.T) {
	needsRoot(t)
	others := &nodesFake{}
	h := openHost(t, func(c *parts) { c.Nodes = others })
	h.create(t, spec("mysql"))
	_, err := cluster.Apply(h.ctx, h.ledger,
		command.Start(claim.Run{Ref: claim.WorkloadRef{Namespace: "default", ID: "db"}, Node: "n2"}, []claim.Claim{{
			Volume: volumeOf("mysql"), Mode: claim.Write, AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem,
		}}))

	check.NoError(t, err)

	got, err := h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "mysql"})
	check.NoError(t, err)
	if u := got.Usage; u.GetBytesUsed() != 7 || u.GetBytesTotal() != 100 {
		t.Errorf("usage on n2: %v", u)
	}
	_, err = h.client.Volumes.ExpandVolume(h.ctx, &hostv1.ExpandVolumeRequest{Id: "mysql", CapacityMin: 2 << 20})
	check.NoError(t, err)
	if want := fmt.Sprint("n2 mysql ", 2<<20); len(others.grown) != 1 || others.grown[0] != want {
		t.Errorf("asked for %q, want %q", others.grown, want)
	}

	others.set(errors.New("no way there"))
	if got, err = h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "mysql"}); err != nil ||
		got.Usage != nil {
		t.Errorf("usage of a node that does not answer: %v, %v", got.Usage, err)
	}
	_, err = h.client.Volumes.ExpandVolume(h.ctx, &hostv1.ExpandVolumeRequest{Id: "mysql", CapacityMin: 3 << 20})
	wantError(t, err, connect.CodeUnknown, `on node "n2"`, "no way there", "expand it again")

	// A node without claims is not asked.
	others.set(nil)
	_, err = cluster.Apply(h.ctx, h.ledger, &command.AdvanceClaims{Items: []command.Advance{{
		Volume: volumeOf("mysql"), Workload: claim.WorkloadRef{Namespace: "default", ID: "db"},
		To: claim.NodeDetached,
	}}})
	check.NoError(t, err)
	_, err = h.client.Volumes.ExpandVolume(h.ctx, &hostv1.ExpandVolumeRequest{Id: "mysql", CapacityMin: 4 << 20})
	check.NoError(t, err)
	if len(others.grown) > 0 {
		t.Errorf("asked for %q after the release", others.grown)
	}
}

// The size of a volume is what its driver answered.
func TestExpandedSize(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("a"))
	for _, answered := range []int64{3 << 20, 2<<20 - 512} { // rounded up, and down
		h.fake.grown = answered
		resp := check.Must(h.client.Volumes.ExpandVolume(h.ctx,
			&hostv1.ExpandVolumeRequest{Id: "a", CapacityMin: 2 << 20, CapacityMax: 4 << 20}))(t)
		if got := resp.GetVolume().GetCapacity(); got != answered {
			t.Errorf("shown are %d bytes, answered %d", got, answered)
		}
	}
}
