package peer

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/cluster/command"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/sdk/storage"
)

// NodesConfig is what Nodes work with.
type NodesConfig struct {
	// Name is this agent's. Local makes calls to this agent without a connection.
	Name  string
	Local *Node
	// Member finds an agent by its name; false: it is not known.
	Member func(name string) (route.Member, bool)
	Dialer Dialer
	// Ledger is this server's own.
	Ledger Reader
	// Term is the term in which this server leads; 0: it does not lead.
	Term func() uint64
}

// Nodes makes the leader's calls to the cluster's nodes. All of them may be repeated. It is safe for concurrent use
// and starts no goroutine.
type Nodes struct{ cfg NodesConfig }

// NewNodes makes Nodes.
func NewNodes(cfg NodesConfig) *Nodes { return &Nodes{cfg} }

// Storage makes controller calls to the drivers of a node, by the drivers' IDs. If the node cannot be reached, or the
// driver is not connected, the error is Unavailable. Calls that are no controller calls are refused.
func (n *Nodes) Storage(node string) storage.Client {
	return storage.NewClient(nodeConn{n, node})
}

// Owns asks the node of a claim whether it will stop the workload itself.
func (n *Nodes) Owns(ctx context.Context, c claim.Claim) (bool, error) {
	if c.Node == n.cfg.Name {
		return n.cfg.Local.Workloads.Owns(c.Workload), nil
	}
	resp, err := n.service(c.Node).Owns(ctx, &peerv1.OwnsRequest{Namespace: c.Workload.Namespace, Workload: c.Workload.ID})
	return resp.GetOwns(), err
}

// Release reads how the release of a claim's workload goes on its node; zero: it does not wait.
func (n *Nodes) Release(ctx context.Context, c claim.Claim) (workload.Release, error) {
	resp, err := n.service(c.Node).Owns(ctx, &peerv1.OwnsRequest{Namespace: c.Workload.Namespace, Workload: c.Workload.ID})
	if err != nil || len(resp.GetRelease()) == 0 {
		return workload.Release{}, err
	}
	return decode[workload.Release](resp.GetRelease())
}

// DetachUnknown unmounts what a claim of a workload that its node does not own may have left mounted there.
func (n *Nodes) DetachUnknown(ctx context.Context, c claim.Claim, v claim.Volume) error {
	if c.Node == n.cfg.Name {
		return n.cfg.Local.Workloads.DetachUnknown(ctx, c, v)
	}
	claimed, volume, err := carried(c, v)
	if err != nil {
		return err
	}
	_, err = n.service(c.Node).DetachUnknown(ctx, &peerv1.DetachUnknownRequest{Claim: claimed, Volume: volume})
	return err
}

// Detach stops the workload of a claim on its node, and says what was done or why it could not be.
func (n *Nodes) Detach(ctx context.Context, c claim.Claim, v claim.Volume) (did string, err error) {
	if c.Node == n.cfg.Name {
		return n.cfg.Local.Workloads.Detach(ctx, c, v)
	}
	claimed, volume, err := carried(c, v)
	if err != nil {
		return "", err
	}
	resp, err := n.service(c.Node).Detach(ctx, &peerv1.DetachRequest{Claim: claimed, Volume: volume})
	return resp.GetDid(), err
}

// StopWorkload asks a node to stop a workload, and does not wait for its end. A workload that does not run there is
// success.
func (n *Nodes) StopWorkload(ctx context.Context, node string, ref claim.WorkloadRef, reason string) error {
	if node == n.cfg.Name {
		return n.cfg.Local.StopWorkload(ctx, ref, reason)
	}
	_, err := n.service(node).StopWorkload(ctx,
		&peerv1.StopWorkloadRequest{Namespace: ref.Namespace, Workload: ref.ID, Reason: reason})
	return err
}

// ExpandVolume grows a volume wherever it is mounted on a node, and returns in how many places.
func (n *Nodes) ExpandVolume(ctx context.Context, node string, v claim.Volume, minBytes, maxBytes int64) (places int,
	err error,
) {
	if node == n.cfg.Name {
		return n.cfg.Local.ExpandVolume(ctx, v, minBytes, maxBytes)
	}
	volume, err := codec.Marshal(v)
	if err != nil {
		return 0, err
	}
	resp, err := n.service(node).ExpandVolume(ctx,
		&peerv1.ExpandVolumeRequest{Volume: volume, CapacityMin: minBytes, CapacityMax: maxBytes})
	return int(resp.GetPlaces()), err
}

// VolumeStats reads usage and condition of a volume that is mounted on a node.
func (n *Nodes) VolumeStats(ctx context.Context, node string, v claim.Volume) (stats storage.Stats, err error) {
	if node == n.cfg.Name {
		return n.cfg.Local.VolumeStats(ctx, v)
	}
	volume, err := codec.Marshal(v)
	if err != nil {
		return stats, err
	}
	resp, err := n.service(node).VolumeStats(ctx, &peerv1.VolumeStatsRequest{Volume: volume})
	if err != nil {
		return stats, err
	}
	return decode[storage.Stats](resp.GetStats())
}

// Info asks a node who it is.
func (n *Nodes) Info(ctx context.Context, node string) (Info, error) {
	if node == n.cfg.Name {
		return n.cfg.Local.Info, nil
	}
	resp, err := n.service(node).NodeInfo(ctx, &peerv1.NodeInfoRequest{})
	return Info{
		Name: resp.GetName(), Version: resp.GetVersion(), BootID: resp.GetBootId(),
		StartedAt: resp.GetStartedAt().AsTime(),
	}, err
}

func (n *Nodes) service(node string) peerv1.NodeServiceClient {
	return peerv1.NewNodeServiceClient(nodeConn{n, node})
}

// carried encodes a claim and its volume for sending.
func carried(c claim.Claim, v claim.Volume) (claimed, volume []byte, err error) {
	if claimed, err = codec.Marshal(c); err != nil {
		return nil, nil, err
	}
	volume, err = codec.Marshal(v)
	return claimed, volume, err
}

// nodeConn makes calls to one node, each with the leader's term and a timeout, and converts the errors.
type nodeConn struct {
	nodes *Nodes
	node  string
}

// Invoke makes one call.
func (c nodeConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	m, ok := c.nodes.cfg.Member(c.node)
	if !ok {
		return received(status.Errorf(codes.Unavailable,
			"node %q is no member of the cluster now (see: pannier server members)", c.node))
	}
	role := pki.Node
	if m.Server {
		role = pki.Server
	}
	conn, err := c.nodes.cfg.Dialer.Conn(m.Addr, m.Name, role)
	if err != nil {
		return received(status.Error(codes.Unavailable, err.Error()))
	}
	term := c.nodes.cfg.Term()
	if term == 0 {
		// The next leader answers the caller, who may repeat the call.
		return &answered{status: status.New(codes.Aborted, errOldTerm.Error()), is: command.ErrNotLeader}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if ctx, err = expect(ctx, c.nodes.cfg.Ledger, c.node); err != nil {
		return err
	}
	return received(conn.Invoke(withTerm(ctx, term), method, args, reply, opts...))
}

// NewStream implements grpc.ClientConnInterface. Nodes serve no streams.
func (c nodeConn) NewStream(_ context.Context, _ *grpc.StreamDesc, method string,
	_ ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return nil, status.Errorf(codes.Unimplemented, "node %q serves no stream %s", c.node, method)
}

var _ grpc.ClientConnInterface = nodeConn{}
