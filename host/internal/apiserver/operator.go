package apiserver

import (
	"context"
	"io"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// Raft is what operators do with the cluster's servers (cluster.Node).
type Raft interface {
	Peers(ctx context.Context) ([]cluster.Peer, error)
	// TransferLeadership lets a server lead, or with an empty name one that is up to date.
	TransferLeadership(ctx context.Context, name string) error
	// RemovePeer takes a server out that is not there (cluster.ErrPeerAlive, ErrNoPeer).
	RemovePeer(ctx context.Context, name string) error
	// Leave takes this server out; leave tells the others that it goes.
	Leave(ctx context.Context, leave func() error) error
	Save(ctx context.Context, w io.Writer) (cluster.Backup, error)
	Restore(ctx context.Context, r io.Reader) (cluster.Backup, error)
	Autopilot() claim.Autopilot
	// SetAutopilot changes it for good, whoever leads (claim.ErrInvalid).
	SetAutopilot(ctx context.Context, by claim.AutopilotChange) (claim.Autopilot, error)
}

// operatorService serves pannier.host.v1.OperatorService.
type operatorService struct{ *Server }

// ListPeers lists the servers that take part in raft.
func (s operatorService) ListPeers(ctx context.Context, _ *connect.Request[hostv1.ListPeersRequest]) (*connect.Response[hostv1.ListPeersResponse], error) {
	peers, err := s.cfg.Raft.Peers(ctx)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostv1.ListPeersResponse{Peers: shownPeers(peers)}), nil
}

func shownPeers(peers []cluster.Peer) []*hostv1.RaftPeer {
	var out []*hostv1.RaftPeer
	for _, p := range peers {
		shown := &hostv1.RaftPeer{
			Name: p.ID, Address: p.Address, Leader: p.Leader, Voter: p.Voter, Healthy: p.Healthy, LastIndex: p.LastIndex, Version: p.Version,
		}
		if p.Answered && p.LastContact >= 0 {
			shown.LastContact = durationpb.New(p.LastContact)
		}
		out = append(out, shown)
	}
	return out
}

// TransferLeadership makes another server lead.
func (s operatorService) TransferLeadership(ctx context.Context, req *connect.Request[hostv1.TransferLeadershipRequest]) (*connect.Response[hostv1.TransferLeadershipResponse], error) {
	if err := s.cfg.Raft.TransferLeadership(ctx, req.Msg.GetName()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostv1.TransferLeadershipResponse{Leader: s.leaderName()}), nil
}

// RemovePeer takes a server out of raft that is gone for good.
func (s operatorService) RemovePeer(ctx context.Context, req *connect.Request[hostv1.RemovePeerRequest]) (*connect.Response[hostv1.RemovePeerResponse], error) {
	return connect.NewResponse(&hostv1.RemovePeerResponse{}), s.cfg.Raft.RemovePeer(ctx, req.Msg.GetName())
}

// GetAutopilot reads what autopilot does by itself.
func (s operatorService) GetAutopilot(context.Context, *connect.Request[hostv1.GetAutopilotRequest]) (*connect.Response[hostv1.GetAutopilotResponse], error) {
	return connect.NewResponse(&hostv1.GetAutopilotResponse{Autopilot: shownAutopilot(s.cfg.Raft.Autopilot())}), nil
}

func shownAutopilot(a claim.Autopilot) *hostv1.Autopilot {
	quorum := uint32(max(a.MinQuorum, 0))
	return &hostv1.Autopilot{
		CleanupDeadServers: &a.CleanupDeadServers, LastContactThreshold: durationpb.New(a.LastContactThreshold),
		ServerStabilizationTime: durationpb.New(a.ServerStabilizationTime), MinQuorum: &quorum,
	}
}

// SetAutopilot changes what it does, for good.
func (s operatorService) SetAutopilot(ctx context.Context, req *connect.Request[hostv1.SetAutopilotRequest]) (*connect.Response[hostv1.SetAutopilotResponse], error) {
	want, by := req.Msg.GetAutopilot(), claim.AutopilotChange{}
	if want != nil {
		by.CleanupDeadServers = want.CleanupDeadServers
		by.LastContactThreshold, by.ServerStabilizationTime = asDuration(want.GetLastContactThreshold()), asDuration(want.GetServerStabilizationTime())
	}
	if want != nil && want.MinQuorum != nil {
		quorum := int(want.GetMinQuorum())
		by.MinQuorum = &quorum
	}
	now, err := s.cfg.Raft.SetAutopilot(ctx, by)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostv1.SetAutopilotResponse{Autopilot: shownAutopilot(now)}), nil
}

// asDuration is nil where d is absent; one out of range is as long as can be told.
func asDuration(d *durationpb.Duration) *time.Duration {
	if d == nil {
		return nil
	}
	in := d.AsDuration()
	return &in
}

// AutopilotHealth tells how the servers are.
func (s operatorService) AutopilotHealth(ctx context.Context, _ *connect.Request[hostv1.AutopilotHealthRequest]) (*connect.Response[hostv1.AutopilotHealthResponse], error) {
	peers, err := s.cfg.Raft.Peers(ctx)
	if err != nil {
		return nil, err
	}
	voters, well := 0, 0
	resp := &hostv1.AutopilotHealthResponse{Healthy: true, Peers: shownPeers(peers)}
	for _, p := range peers {
		resp.Healthy = resp.Healthy && p.Healthy
		if p.Voter {
			voters++
			if p.Healthy {
				well++
			}
		}
	}
	// More than half of the voters have to be there.
	resp.FailureTolerance = int64(max(well-(voters/2+1), 0))
	return connect.NewResponse(resp), nil
}
