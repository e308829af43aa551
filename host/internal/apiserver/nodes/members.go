package nodes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/internal/errcode"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

var (
	// ErrUsed is returned while workloads would lose their volumes.
	ErrUsed = errcode.FailedPrecondition.New("workloads of this node have volumes")
	// ErrAlive is returned by calls that are only for dead agents.
	ErrAlive = errcode.FailedPrecondition.New("it is alive")
	// ErrLastServer is returned if leaving would lose the ledger.
	ErrLastServer = errcode.FailedPrecondition.New("it is the only server, and the ledger would be gone with it")
	// ErrUnknownKey is returned if no agent has a key of that id.
	ErrUnknownKey = errcode.NotFound.New("no such key (see: pannier keyring list)")
)

// ListMembers lists the agents that this one knows. A host that is in no cluster lists itself.
func (h *Handler) ListMembers(context.Context, *hostv1.ListMembersRequest) (*hostv1.ListMembersResponse, error) {
	leader := h.leaderName()
	if h.Discovery == nil {
		return &hostv1.ListMembersResponse{Members: []*hostv1.Member{{
			Name: h.Name, Status: string(discovery.Alive), Role: string(discovery.Server), Datacenter: h.Datacenter,
			Version: h.Version, Leader: leader == h.Name,
		}}}, nil
	}
	resp := &hostv1.ListMembersResponse{}
	for _, m := range h.Discovery.Members() {
		resp.Members = append(resp.Members, &hostv1.Member{
			Name: m.Name, Address: m.Gossip, RpcAddress: m.RPC, Status: string(m.Status), Role: string(m.Role),
			Datacenter: m.Datacenter, Version: m.Version, Leader: m.Name == leader,
			Cluster: m.Cluster,
		})
	}
	return resp, nil
}

// leaderName returns the leader's name, as far as this agent knows it.
func (h *Handler) leaderName() string {
	switch {
	case h.Ledger != nil:
		return h.Ledger.Stats().LeaderName
	case h.Leader != nil:
		return h.Leader.LeaderName()
	default:
		return ""
	}
}

// JoinMembers joins agents at their addresses.
func (h *Handler) JoinMembers(_ context.Context, req *hostv1.JoinMembersRequest) (*hostv1.JoinMembersResponse, error) {
	if len(req.GetAddresses()) == 0 {
		return nil, call.Invalid("join", "addresses", "are missing: at which host:port is another agent?")
	}
	n, err := h.Discovery.Join(req.GetAddresses()...)
	if n == 0 && err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	return &hostv1.JoinMembersResponse{Joined: int32(n)}, nil
}

// ForceLeave marks a failed agent as left.
func (h *Handler) ForceLeave(_ context.Context, req *hostv1.ForceLeaveRequest) (*hostv1.ForceLeaveResponse, error) {
	if m, _ := h.Discovery.Member(req.GetName()); m.Status == discovery.Alive {
		return nil, fmt.Errorf("force %q to leave: %w: it would be back at once; on it: pannier agent leave", m.Name,
			ErrAlive)
	}
	return &hostv1.ForceLeaveResponse{}, h.Discovery.ForceLeave(req.GetName(), req.GetPrune())
}

// Leave makes this agent leave the cluster for good and stop. A leader transfers its leadership first, and a server
// waits until it is removed from raft.
func (h *Handler) Leave(ctx context.Context, _ *hostv1.LeaveRequest) (*hostv1.LeaveResponse, error) {
	doing := fmt.Sprintf("let %q leave the cluster", h.Name)
	for _, w := range h.Workloads.List() {
		if len(w.Spec.Volumes) > 0 && w.State != workload.Stopped && w.State != workload.Failed {
			return nil, fmt.Errorf("%s: %w, such as %q; empty it first: pannier node drain -enable -wait %s", doing, ErrUsed,
				w.Spec.WorkloadRef, h.Name)
		}
	}
	// A plain node has nothing to hand over.
	leave := func(_ context.Context, leave func() error) error { return leave() }
	if h.Ledger != nil {
		others := slices.ContainsFunc(h.Discovery.Members(), func(m discovery.Member) bool {
			return m.Name != h.Name && m.Role == discovery.Server && m.Status == discovery.Alive
		})
		if !others {
			return nil, fmt.Errorf("%s: %w; start another one first, or stop the agent: pannier agent stop", doing,
				ErrLastServer)
		}
		leave = h.Ledger.Leave
	}
	if err := leave(ctx, h.Discovery.Leave); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	h.Stop()
	return &hostv1.LeaveResponse{Pid: int64(os.Getpid())}, nil
}

// ListKeys lists the ids of the keys that encrypt gossip.
func (h *Handler) ListKeys(context.Context, *hostv1.ListKeysRequest) (*hostv1.ListKeysResponse, error) {
	keys, err := h.Discovery.ListKeys()
	if errors.Is(err, discovery.ErrNotEncrypted) {
		return nil, err
	}
	resp := &hostv1.ListKeysResponse{Agents: int32(keys.Members)}
	if err != nil {
		resp.Problem = err.Error()
	}
	for _, key := range slices.Sorted(maps.Keys(keys.Keys)) {
		resp.Keys = append(resp.Keys,
			&hostv1.GossipKey{Id: keyID(key), Agents: int32(keys.Keys[key]), Primary: int32(keys.Primary[key])})
	}
	slices.SortFunc(resp.Keys, func(a, b *hostv1.GossipKey) int {
		return cmp.Or(int(b.Primary-a.Primary), cmp.Compare(a.Id, b.Id))
	})
	return resp, nil
}

// AddKey gives every agent another key to decrypt with.
func (h *Handler) AddKey(_ context.Context, req *hostv1.AddKeyRequest) (*hostv1.AddKeyResponse, error) {
	key := req.GetKey()
	if raw, err := base64.StdEncoding.DecodeString(key); err != nil || !slices.Contains([]int{16, 24, 32}, len(raw)) {
		return nil, call.Invalid("gossip key", "key",
			"must be 16, 24 or 32 bytes in base64, such as of: head -c 32 /dev/urandom | base64")
	}
	_, err := h.Discovery.InstallKey(key)
	return &hostv1.AddKeyResponse{Id: keyID(key)}, err
}

// UseKey makes every agent encrypt with a key.
func (h *Handler) UseKey(_ context.Context, req *hostv1.UseKeyRequest) (*hostv1.UseKeyResponse, error) {
	err := h.withKey(req.GetId(), Discovery.UseKey)
	return &hostv1.UseKeyResponse{}, err
}

// RemoveKey removes a key from every agent.
func (h *Handler) RemoveKey(_ context.Context, req *hostv1.RemoveKeyRequest) (*hostv1.RemoveKeyResponse, error) {
	err := h.withKey(req.GetId(), Discovery.RemoveKey)
	return &hostv1.RemoveKeyResponse{}, err
}

// withKey finds a key by its id and passes it to do. Errors contain the id only.
func (h *Handler) withKey(id string, do func(d Discovery, key string) (discovery.Keys, error)) error {
	keys, err := h.Discovery.ListKeys()
	for key := range keys.Keys {
		if keyID(key) == id {
			_, err := do(h.Discovery, key)
			return err
		}
	}
	return errors.Join(fmt.Errorf("key %q: %w", call.Shortened(id), ErrUnknownKey), err)
}

// keyID identifies a key without revealing it.
func keyID(key string) string {
	raw, err := base64.StdEncoding.DecodeString(key)
	if err != nil {
		raw = []byte(key)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}
