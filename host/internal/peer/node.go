package peer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/storage"
)

// stopTimeout is how long StopWorkload waits for the end: long enough to report an immediate error. The stop itself
// continues.
const stopTimeout = 500 * time.Millisecond

// Workloads are this node's workloads (workload.Manager).
type Workloads interface {
	Owns(ref claim.WorkloadRef) bool
	Get(ref claim.WorkloadRef) (workload.Workload, error)
	DetachUnknown(ctx context.Context, c claim.Claim, v claim.Volume) error
	Detach(ctx context.Context, c claim.Claim, v claim.Volume) (did string, err error)
	Stop(ctx context.Context, ref claim.WorkloadRef, reason string, progress func(workload.Step)) (workload.Workload,
		error)
	Placements(ref claim.VolumeRef) []workload.Placement
	Expand(v claim.Volume, do func(at mounts.Place) error) (places int, err error)
}

// Mounted makes calls to this node's drivers about what is mounted here (controllers.Controllers).
type Mounted interface {
	ExpandNode(ctx context.Context, v claim.Volume, at mounts.Place, minBytes, maxBytes int64) error
	Stats(ctx context.Context, v claim.Definition, at mounts.Place) (storage.Stats, error)
}

// Info identifies a node.
type Info struct {
	Name, Version, BootID string
	// SecretHash is the hash of the node's secret.
	SecretHash string
	StartedAt  time.Time
}

// Node does what the leader asks of an agent.
type Node struct {
	Info      Info
	Workloads Workloads
	Mounted   Mounted
	// Calls reaches the drivers of this node.
	Calls drivers.Caller
}

// expectKey is the metadata of a leader's call that says which machine, in which boot, the ledger has under the name.
const expectKey = "node-expected"

// errAnotherMachine: the call is for another machine of this name, or for an earlier boot.
var errAnotherMachine = errcode.Unavailable.New("another machine than the one in the ledger has this name")

// expect makes calls to a node fail on another machine than the one that the ledger has under its name, and on another
// boot of it while the earlier one may use its claims.
func expect(ctx context.Context, ledger Reader, name string) (context.Context, error) {
	n, err := get(ctx, ledger.Read, (*state.ReadTx).Node, name)
	if errors.Is(err, claim.ErrNodeNotFound) || err == nil && n.SecretHash == "" {
		return ctx, nil
	}
	boot := n.BootID
	if n.Status == claim.NodeDown {
		boot = ""
	}
	return metadata.AppendToOutgoingContext(ctx, expectKey, n.SecretHash+" "+boot), err
}

// expected checks that a leader's call is for this machine, in this boot.
func (n *Node) expected(ctx context.Context) error {
	for _, value := range metadata.ValueFromIncomingContext(ctx, expectKey) {
		hash, boot, _ := strings.Cut(value, " ")
		if hash != n.Info.SecretHash || boot != "" && boot != n.Info.BootID {
			return fmt.Errorf("%w (%q)", errAnotherMachine, n.Info.Name)
		}
	}
	return nil
}

// ExpandVolume grows what is mounted of a volume here, and returns in how many places.
func (n *Node) ExpandVolume(ctx context.Context, v claim.Volume, minBytes, maxBytes int64) (places int, err error) {
	return n.Workloads.Expand(v, func(at mounts.Place) error {
		return n.Mounted.ExpandNode(ctx, v, at, minBytes, maxBytes)
	})
}

// errNotMounted means that a volume has no mount on the node.
var errNotMounted = errors.New("the volume is not mounted there")

// VolumeStats reads usage and condition of a volume that is mounted here.
func (n *Node) VolumeStats(ctx context.Context, v claim.Volume) (storage.Stats, error) {
	for _, p := range n.Workloads.Placements(v.VolumeRef) {
		return n.Mounted.Stats(ctx, v.Definition, p.Place)
	}
	return storage.Stats{}, fmt.Errorf("read the usage of volume %q on node %q: %w", v.VolumeRef, n.Info.Name,
		errNotMounted)
}

// StopWorkload asks for the end of a workload, and does not wait for it. A workload that does not run here is success.
func (n *Node) StopWorkload(ctx context.Context, ref claim.WorkloadRef, reason string) error {
	hearing, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	_, err := n.Workloads.Stop(hearing, ref, reason, nil)
	switch {
	case errors.Is(err, workload.ErrNotFound):
		return nil
	case hearing.Err() != nil:
		return ctx.Err() // the stop continues
	default:
		return err
	}
}

// nodeService serves the leader's calls to this node.
type nodeService struct {
	peerv1.UnimplementedNodeServiceServer
	node *Node
}

func (s nodeService) ExpandVolume(ctx context.Context, req *peerv1.ExpandVolumeRequest) (*peerv1.ExpandVolumeResponse,
	error,
) {
	v, err := decode[claim.Volume](req.GetVolume())
	if err != nil {
		return nil, err
	}
	places, err := s.node.ExpandVolume(ctx, v, req.GetCapacityMin(), req.GetCapacityMax())
	return &peerv1.ExpandVolumeResponse{Places: int32(places)}, err
}

func (s nodeService) VolumeStats(ctx context.Context, req *peerv1.VolumeStatsRequest) (*peerv1.VolumeStatsResponse,
	error,
) {
	v, err := decode[claim.Volume](req.GetVolume())
	if err != nil {
		return nil, err
	}
	stats, err := s.node.VolumeStats(ctx, v)
	if err != nil {
		return nil, err
	}
	encoded, err := codec.Marshal(stats)
	return &peerv1.VolumeStatsResponse{Stats: encoded}, err
}

func (s nodeService) Owns(_ context.Context, req *peerv1.OwnsRequest) (*peerv1.OwnsResponse, error) {
	ref := claim.WorkloadRef{Namespace: req.GetNamespace(), ID: req.GetWorkload()}
	resp := &peerv1.OwnsResponse{Owns: s.node.Workloads.Owns(ref)}
	w, err := s.node.Workloads.Get(ref)
	if err != nil || w.Release.Tries == 0 {
		return resp, nil //nolint:nilerr // a workload that is not here has no release
	}
	resp.Release, err = codec.Marshal(w.Release)
	return resp, err
}

func (s nodeService) DetachUnknown(ctx context.Context,
	req *peerv1.DetachUnknownRequest,
) (*peerv1.DetachUnknownResponse, error) {
	c, v, err := s.claimed(req)
	if err == nil {
		err = s.node.Workloads.DetachUnknown(ctx, c, v)
	}
	return &peerv1.DetachUnknownResponse{}, err
}

func (s nodeService) Detach(ctx context.Context, req *peerv1.DetachRequest) (*peerv1.DetachResponse, error) {
	c, v, err := s.claimed(req)
	if err != nil {
		return nil, err
	}
	did, err := s.node.Workloads.Detach(ctx, c, v)
	return &peerv1.DetachResponse{Did: did}, err
}

func (s nodeService) StopWorkload(ctx context.Context, req *peerv1.StopWorkloadRequest) (*peerv1.StopWorkloadResponse,
	error,
) {
	ref := claim.WorkloadRef{Namespace: req.GetNamespace(), ID: req.GetWorkload()}
	return &peerv1.StopWorkloadResponse{}, s.node.StopWorkload(ctx, ref, req.GetReason())
}

func (s nodeService) NodeInfo(context.Context, *peerv1.NodeInfoRequest) (*peerv1.NodeInfoResponse, error) {
	i := s.node.Info
	return &peerv1.NodeInfoResponse{
		Name: i.Name, Version: i.Version, BootId: i.BootID,
		StartedAt: timestamppb.New(i.StartedAt),
	}, nil
}

// claimed reads a claim on this node and its volume. Their IDs become paths here, so they are checked even
// though a server sent them.
func (s nodeService) claimed(req interface {
	GetClaim() []byte
	GetVolume() []byte
},
) (c claim.Claim, v claim.Volume, err error) {
	if c, err = decode[claim.Claim](req.GetClaim()); err != nil {
		return c, v, err
	}
	if v, err = decode[claim.Volume](req.GetVolume()); err != nil {
		return c, v, err
	}
	if c.Node != s.node.Info.Name {
		return c, v, fmt.Errorf("a claim on node %q was sent to node %q", c.Node, s.node.Info.Name)
	}
	if err := errors.Join(c.Volume.Validate(), c.Workload.Validate(), claim.CheckID(v.PluginID)); err != nil {
		return c, v, fmt.Errorf("%w: %w", claim.ErrInvalid, err)
	}
	return c, v, nil
}
