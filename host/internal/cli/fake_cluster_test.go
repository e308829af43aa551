package cli

import (
	"errors"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// nodes returns the nodes of the fake's cluster: the drain of n2 takes two steps, and n3 has stopped sending
// heartbeats.
func (f *fake) nodes() []*hostv1.Node {
	return []*hostv1.Node{
		{
			Name: "n1", Status: "ready", Eligible: true, Server: true, Address: "10.0.0.1:7421", Version: "1.2.3",
			LastHeard: ago(3 * time.Second),
			Drivers: []*hostv1.NodeDriver{{
				Id: "local", Type: "monolith", Healthy: true, Provider: "csi.local",
				Topology: map[string]string{"rack": "R1"},
			}},
			Devices:    []*hostv1.NodeDevices{{Plugin: "gpus", Vendor: "acme", Type: "gpu", Name: "a1", Total: 4, Healthy: 3}},
			Attributes: map[string]string{"kernel": "6.1"},
		},
		{
			Name: "n2", Status: "ready", Drain: &hostv1.NodeDrain{StartedAt: ago(time.Minute), By: "root"},
			Address: "10.0.0.2:7421",
		},
		{
			Name: "n3", Status: "disconnected", Eligible: true, LastHeard: ago(40 * time.Second),
			LetGoAt: timestamppb.New(time.Now().Add(50*time.Second + 500*time.Millisecond)),
		},
	}
}

func (f *fake) ListNodes(r *hostv1.ListNodesRequest) (*hostv1.ListNodesResponse, error) {
	return &hostv1.ListNodesResponse{Nodes: f.nodes(), Meta: meta(r.GetRead())}, nil
}

// meta describes the answer of a server that heard from the leader five seconds ago.
func meta(read *hostv1.ReadOptions) *hostv1.ReadMeta {
	m := &hostv1.ReadMeta{Index: 7, KnownLeader: true}
	if read.GetStale() {
		m.Age = durationpb.New(5500 * time.Millisecond)
	}
	return m
}

// GetNode returns n2 with its drain completed if the caller waits for a change.
func (f *fake) GetNode(r *hostv1.GetNodeRequest) (*hostv1.GetNodeResponse, error) {
	for _, n := range f.nodes() {
		if n.GetName() != r.GetName() {
			continue
		}
		resp := &hostv1.GetNodeResponse{Node: n, Meta: meta(r.GetRead())}
		if r.GetRead().GetIndex() > 0 {
			n.Drain.DoneAt = timestamppb.Now()
			return resp, nil
		}
		resp.Workloads = []*hostv1.NodeWorkload{{
			Namespace: "default", Id: "db", Status: "waiting",
			After: []string{"default/web"}, CreatedAt: ago(time.Hour),
		}}
		for id, w := range f.workloads {
			if w.GetNode() == r.GetName() && w.GetState() != "stopped" {
				resp.Workloads = append(resp.Workloads, &hostv1.NodeWorkload{Namespace: "default", Id: id, Status: "running"})
			}
		}
		resp.Claims = []*hostv1.Claim{{
			Volume: "data", Namespace: "default", Workload: "web", Node: r.GetName(), Mode: "write",
			State: "unpublishing", TakenAt: ago(2 * time.Hour),
		}}
		return resp, nil
	}
	return nil, connect.NewError(connect.CodeNotFound, errors.New("node is not known"))
}

func (f *fake) DrainNode(r *hostv1.DrainNodeRequest) (*hostv1.DrainNodeResponse, error) {
	if r.GetName() == "unknown" {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("node is not known"))
	}
	return &hostv1.DrainNodeResponse{Node: &hostv1.Node{Name: r.GetName()}}, nil
}

func (f *fake) SetNodeEligibility(r *hostv1.SetNodeEligibilityRequest) (*hostv1.SetNodeEligibilityResponse, error) {
	return &hostv1.SetNodeEligibilityResponse{Node: &hostv1.Node{
		Name:     r.GetName(),
		Eligible: r.GetEligible(),
	}}, nil
}

func (f *fake) SetNodeNamespaces(r *hostv1.SetNodeNamespacesRequest) (*hostv1.SetNodeNamespacesResponse, error) {
	return &hostv1.SetNodeNamespacesResponse{Node: &hostv1.Node{
		Name: r.GetName(), Namespaces: r.GetNamespaces(),
	}}, nil
}

func (f *fake) ApproveDriver(r *hostv1.ApproveDriverRequest) (*hostv1.ApproveDriverResponse, error) {
	return &hostv1.ApproveDriverResponse{Node: &hostv1.Node{Name: r.GetName()}}, nil
}

func (f *fake) PurgeNode(r *hostv1.PurgeNodeRequest) (*hostv1.PurgeNodeResponse, error) {
	if !r.GetForce() {
		return nil, connect.NewError(connect.CodeFailedPrecondition,
			errors.New("node is in use; when it is down for good: pannier node purge -force n3"))
	}
	return &hostv1.PurgeNodeResponse{LetGo: []*hostv1.Claim{{Volume: "data", Workload: "web"}}}, nil
}

func (f *fake) ListMembers(*hostv1.ListMembersRequest) (*hostv1.ListMembersResponse, error) {
	return &hostv1.ListMembersResponse{Members: []*hostv1.Member{
		{
			Name: "n1", Role: "server", Status: "alive", Leader: true, Address: "10.0.0.1:7422", RpcAddress: "10.0.0.1:7421",
			Datacenter: "dc1", Version: "1.2.3",
		},
		{
			Name: "n3", Role: "node", Status: "failed", Address: "10.0.0.3:7422", RpcAddress: "10.0.0.3:7421", Datacenter: "dc1",
			Version: "1.2.2",
		},
	}}, nil
}

func (f *fake) JoinMembers(*hostv1.JoinMembersRequest) (*hostv1.JoinMembersResponse, error) {
	return &hostv1.JoinMembersResponse{Joined: 1}, nil
}

func (f *fake) ForceLeave(r *hostv1.ForceLeaveRequest) (*hostv1.ForceLeaveResponse, error) {
	if r.GetName() != "n3" || !r.GetPrune() {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such member"))
	}
	return &hostv1.ForceLeaveResponse{}, nil
}

func (f *fake) ListKeys(*hostv1.ListKeysRequest) (*hostv1.ListKeysResponse, error) {
	return &hostv1.ListKeysResponse{
		Keys: []*hostv1.GossipKey{{Id: "0123456789abcdef", Agents: 3, Primary: 2}}, Agents: 3, Problem: "n3 does not answer",
	}, nil
}

func (f *fake) AddKey(r *hostv1.AddKeyRequest) (*hostv1.AddKeyResponse, error) {
	if r.GetKey() != "c2VjcmV0c2VjcmV0IQ==" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("must be 16, 24 or 32 bytes"))
	}
	return &hostv1.AddKeyResponse{Id: "fedcba9876543210"}, nil
}

func (f *fake) UseKey(r *hostv1.UseKeyRequest) (*hostv1.UseKeyResponse, error) {
	if r.GetId() != "fedcba9876543210" {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such key"))
	}
	return &hostv1.UseKeyResponse{}, nil
}

func (f *fake) RemoveKey(*hostv1.RemoveKeyRequest) (*hostv1.RemoveKeyResponse, error) {
	return &hostv1.RemoveKeyResponse{}, nil
}

func (f *fake) peers() []*hostv1.RaftPeer {
	return []*hostv1.RaftPeer{
		{
			Name: "n1", Address: "10.0.0.1:7421", Leader: true, Voter: true, Healthy: true, LastContact: durationpb.New(0),
			LastIndex: 99, Version: "1.2.3",
		},
		{Name: "n2", Address: "10.0.0.2:7421", Voter: true, LastIndex: 90, Version: "1.2.3"},
	}
}

func (f *fake) ListPeers(*hostv1.ListPeersRequest) (*hostv1.ListPeersResponse, error) {
	return &hostv1.ListPeersResponse{Peers: f.peers()}, nil
}

func (f *fake) TransferLeadership(r *hostv1.TransferLeadershipRequest) (*hostv1.TransferLeadershipResponse, error) {
	return &hostv1.TransferLeadershipResponse{Leader: r.GetName()}, nil
}

func (f *fake) RemovePeer(r *hostv1.RemovePeerRequest) (*hostv1.RemovePeerResponse, error) {
	if r.GetName() != "n2" {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such server in the cluster"))
	}
	return &hostv1.RemovePeerResponse{}, nil
}

func autopilot() *hostv1.Autopilot {
	cleanup, quorum := true, uint32(0)
	return &hostv1.Autopilot{
		CleanupDeadServers: &cleanup, MinQuorum: &quorum,
		LastContactThreshold: durationpb.New(2 * time.Second), ServerStabilizationTime: durationpb.New(10 * time.Second),
	}
}

func (f *fake) GetAutopilot(*hostv1.GetAutopilotRequest) (*hostv1.GetAutopilotResponse, error) {
	return &hostv1.GetAutopilotResponse{Autopilot: autopilot()}, nil
}

// SetAutopilot returns only the settings that the request changes.
func (f *fake) SetAutopilot(r *hostv1.SetAutopilotRequest) (*hostv1.SetAutopilotResponse, error) {
	return &hostv1.SetAutopilotResponse{Autopilot: r.GetAutopilot()}, nil
}

func (f *fake) AutopilotHealth(*hostv1.AutopilotHealthRequest) (*hostv1.AutopilotHealthResponse, error) {
	return &hostv1.AutopilotHealthResponse{FailureTolerance: 1, Peers: f.peers()}, nil
}

func (f *fake) CollectGarbage(r *hostv1.CollectGarbageRequest) (*hostv1.CollectGarbageResponse, error) {
	resp := &hostv1.CollectGarbageResponse{}
	if r.GetDryRun() {
		resp.Garbage = []*hostv1.Garbage{{
			Kind: "workload", Namespace: "default", Id: "old", Reason: "it has ended",
			Since: ago(49 * time.Hour),
		}}
	}
	return resp, nil
}

func (f *fake) ExplainVolume(r *hostv1.ExplainVolumeRequest) (*hostv1.ExplainVolumeResponse, error) {
	v, err := f.volume(r.GetId())
	if err != nil {
		return nil, err
	}
	return &hostv1.ExplainVolumeResponse{
		Volume: v, Summary: "being released by 1 as single-node-writer",
		Conditions: []*hostv1.VolumeCondition{{Abnormal: true, Message: "worn"}},
		Claims: []*hostv1.ExplainedClaim{{
			Claim: &hostv1.Claim{
				Volume: r.GetId(), Workload: "web", Node: "n3", Mode: "write", State: "unpublishing",
				Index: 7,
			},
			NodeStatus: "disconnected", LastHeard: ago(40 * time.Second), LetGoAt: timestamppb.New(
				time.Now().Add(50*time.Second + 500*time.Millisecond)),
			WaitsFor: "node \"n3\", which is not heard from", Since: ago(time.Minute), Tries: 3, LastError: "no answer\x1b[2J",
			NextTryAt: timestamppb.New(time.Now().Add(8*time.Second +
				500*time.Millisecond)), Next: "the release goes on", Command: "pannier volume detach -force data n3",
		}},
	}, nil
}
