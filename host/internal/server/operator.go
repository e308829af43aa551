package server

import (
	"context"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster"
	hostv1 "github.com/pannier/pannier/host/api/proto/pannier/host/v1"
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
	Autopilot() cluster.Autopilot
	SetAutopilot(a cluster.Autopilot)
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

func shownAutopilot(a cluster.Autopilot) *hostv1.Autopilot {
	quorum := uint32(max(a.MinQuorum, 0))
	return &hostv1.Autopilot{
		CleanupDeadServers: &a.CleanupDeadServers, LastContactThreshold: durationpb.New(a.LastContactThreshold),
		ServerStabilizationTime: durationpb.New(a.ServerStabilizationTime), MinQuorum: &quorum,
	}
}

// SetAutopilot changes what it does, on this server, until that is started again.
func (s operatorService) SetAutopilot(_ context.Context, req *connect.Request[hostv1.SetAutopilotRequest]) (*connect.Response[hostv1.SetAutopilotResponse], error) {
	want, conf := req.Msg.GetAutopilot(), s.cfg.Raft.Autopilot()
	for field, change := range map[string]struct {
		to  *durationpb.Duration
		set *time.Duration
	}{
		"last_contact_threshold":    {want.GetLastContactThreshold(), &conf.LastContactThreshold},
		"server_stabilization_time": {want.GetServerStabilizationTime(), &conf.ServerStabilizationTime},
	} {
		if change.to == nil {
			continue
		}
		if err := change.to.CheckValid(); err != nil || change.to.AsDuration() <= 0 {
			return nil, invalid("autopilot", field, "must be more than 0")
		}
		*change.set = change.to.AsDuration()
	}
	if want != nil && want.CleanupDeadServers != nil {
		conf.CleanupDeadServers = want.GetCleanupDeadServers()
	}
	if want != nil && want.MinQuorum != nil {
		if want.GetMinQuorum() > maxServers {
			return nil, invalid("autopilot", "min_quorum", fmt.Sprintf("must be %d at most", maxServers))
		}
		conf.MinQuorum = int(want.GetMinQuorum())
	}
	s.cfg.Raft.SetAutopilot(conf)
	return connect.NewResponse(&hostv1.SetAutopilotResponse{Autopilot: shownAutopilot(conf)}), nil
}

// maxServers is more than any cluster has.
const maxServers = 99

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
