package operator

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/secrets/rotation"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/consul/tokens"
	"github.com/pannier/pannier/host/internal/peer/watcher"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// Handler serves pannier.host.v1.OperatorService, SecretsService and SystemService. All are answered by servers.
type Handler struct {
	Log    hclog.Logger
	Ledger *cluster.Node
	// Reconcile compares what runs on this host with the ledger, after that was restored; nil in a cluster.
	Reconcile func(ctx context.Context) error
	// SecretsKeys encrypt volumes' secrets.
	SecretsKeys *rotation.Keeper
	// SigningKeys are the keys of the JWTs with which services log in to Consul.
	SigningKeys *tokens.Authority
	Watcher     *watcher.Watcher
}

// ListPeers lists the servers that take part in raft.
func (h *Handler) ListPeers(ctx context.Context, _ *hostv1.ListPeersRequest) (*hostv1.ListPeersResponse, error) {
	peers, err := h.Ledger.Peers(ctx)
	return &hostv1.ListPeersResponse{Peers: call.Each(peers, shownPeer)}, err
}

func shownPeer(p cluster.Peer) *hostv1.RaftPeer {
	shown := &hostv1.RaftPeer{
		Name: p.ID, Address: p.Address, Leader: p.Leader, Voter: p.Voter, Healthy: p.Healthy, LastIndex: p.LastIndex,
		Version: p.Version,
	}
	if p.Answered && p.LastContact >= 0 {
		shown.LastContact = durationpb.New(p.LastContact)
	}
	return shown
}

// TransferLeadership makes another server lead.
func (h *Handler) TransferLeadership(ctx context.Context,
	req *hostv1.TransferLeadershipRequest,
) (*hostv1.TransferLeadershipResponse, error) {
	err := h.Ledger.TransferLeadership(ctx, req.GetName())
	return &hostv1.TransferLeadershipResponse{Leader: h.Ledger.Stats().LeaderName}, err
}

// RemovePeer removes a server that is gone for good from raft.
func (h *Handler) RemovePeer(ctx context.Context, req *hostv1.RemovePeerRequest) (*hostv1.RemovePeerResponse, error) {
	return &hostv1.RemovePeerResponse{}, h.Ledger.RemovePeer(ctx, req.GetName())
}

// GetAutopilot reads autopilot's settings.
func (h *Handler) GetAutopilot(context.Context, *hostv1.GetAutopilotRequest) (*hostv1.GetAutopilotResponse, error) {
	return &hostv1.GetAutopilotResponse{Autopilot: shownAutopilot(h.Ledger.Autopilot())}, nil
}

func shownAutopilot(a claim.Autopilot) *hostv1.Autopilot {
	quorum := uint32(max(a.MinQuorum, 0))
	return &hostv1.Autopilot{
		CleanupDeadServers: &a.CleanupDeadServers, LastContactThreshold: durationpb.New(a.LastContactThreshold),
		ServerStabilizationTime: durationpb.New(a.ServerStabilizationTime), MinQuorum: &quorum,
	}
}

// SetAutopilot changes autopilot's settings in the ledger.
func (h *Handler) SetAutopilot(ctx context.Context,
	req *hostv1.SetAutopilotRequest,
) (*hostv1.SetAutopilotResponse, error) {
	want, by := req.GetAutopilot(), claim.AutopilotChange{}
	if want != nil {
		by.CleanupDeadServers = want.CleanupDeadServers
		by.LastContactThreshold, by.ServerStabilizationTime = asDuration(want.GetLastContactThreshold()), asDuration(
			want.GetServerStabilizationTime())
	}
	if want != nil && want.MinQuorum != nil {
		quorum := int(want.GetMinQuorum())
		by.MinQuorum = &quorum
	}
	now, err := h.Ledger.SetAutopilot(ctx, by)
	return &hostv1.SetAutopilotResponse{Autopilot: shownAutopilot(now)}, err
}

// asDuration returns nil if d is absent. Durations out of range become the longest possible.
func asDuration(d *durationpb.Duration) *time.Duration {
	if d == nil {
		return nil
	}
	in := d.AsDuration()
	return &in
}

// AutopilotHealth returns the health of the servers.
func (h *Handler) AutopilotHealth(ctx context.Context,
	_ *hostv1.AutopilotHealthRequest,
) (*hostv1.AutopilotHealthResponse, error) {
	peers, err := h.Ledger.Peers(ctx)
	return &hostv1.AutopilotHealthResponse{
		Healthy: Healthy(peers), Peers: call.Each(peers, shownPeer), FailureTolerance: int64(FailureTolerance(peers)),
	}, err
}

// Healthy reports whether all servers are healthy and vote: one without a vote replaces none that fails.
func Healthy(peers []cluster.Peer) bool {
	return !slices.ContainsFunc(peers, func(p cluster.Peer) bool { return !p.Healthy || !p.Voter })
}

// FailureTolerance is how many more voters may fail before there is no majority.
func FailureTolerance(peers []cluster.Peer) int {
	voters, well := 0, 0
	for _, p := range peers {
		if p.Voter {
			voters++
			if p.Healthy {
				well++
			}
		}
	}
	return max(well-(voters/2+1), 0)
}

// snapshotChunk is the size of a snapshot's messages, in bytes.
const snapshotChunk = 256 << 10

// SaveSnapshot streams a copy of the ledger.
func (h *Handler) SaveSnapshot(ctx context.Context, _ *hostv1.SaveSnapshotRequest,
	stream *connect.ServerStream[hostv1.SaveSnapshotResponse],
) error {
	info, err := h.Ledger.Save(ctx, chunks(func(chunk []byte) error {
		return stream.Send(&hostv1.SaveSnapshotResponse{Chunk: chunk})
	}))
	if err != nil {
		return err
	}
	return stream.Send(&hostv1.SaveSnapshotResponse{Snapshot: snapshotInfo(info)})
}

// chunks is a writer that sends messages of at most snapshotChunk bytes.
type chunks func(chunk []byte) error

func (send chunks) Write(p []byte) (n int, err error) {
	for n < len(p) {
		part := p[n:min(n+snapshotChunk, len(p))]
		if err := send(part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// RestoreSnapshot replaces the ledger by a snapshot.
func (h *Handler) RestoreSnapshot(ctx context.Context,
	stream *connect.ClientStream[hostv1.RestoreSnapshotRequest],
) (*hostv1.RestoreSnapshotResponse, error) {
	by := call.CallerOf(ctx).Who()
	h.Log.Warn("the ledger is to be replaced by a snapshot", "by", by)
	info, err := h.Ledger.Restore(ctx, &received{stream: stream}, by)
	if err != nil {
		return nil, err
	}
	if h.Reconcile != nil {
		if err := h.Reconcile(ctx); err != nil {
			return nil, fmt.Errorf("the ledger is restored, but claims of workloads that have ended since may stay "+
				"until the agent is started again: %w", err)
		}
	}
	return &hostv1.RestoreSnapshotResponse{Snapshot: snapshotInfo(info)}, nil
}

// received reads the chunks of a stream.
type received struct {
	stream *connect.ClientStream[hostv1.RestoreSnapshotRequest]
	left   []byte
}

func (r *received) Read(p []byte) (int, error) {
	for len(r.left) == 0 {
		if !r.stream.Receive() {
			if err := r.stream.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		r.left = r.stream.Msg().GetChunk()
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

func snapshotInfo(b cluster.Backup) *hostv1.SnapshotInfo {
	return &hostv1.SnapshotInfo{
		Index: b.Index, Term: b.Term, Size: b.Size, Checksum: b.SHA256, CreatedAt: call.Time(
			b.CreatedAt), Cluster: b.Cluster, Server: b.Server,
	}
}

// GetSecretsStatus lists the keys that encrypt secrets.
func (h *Handler) GetSecretsStatus(ctx context.Context,
	_ *hostv1.GetSecretsStatusRequest,
) (*hostv1.GetSecretsStatusResponse, error) {
	status, err := h.SecretsKeys.Status(ctx)
	resp := &hostv1.GetSecretsStatusResponse{Problem: status.Problem}
	for _, k := range status.Keys {
		resp.Keys = append(resp.Keys, &hostv1.SecretsKey{
			Id: k.ID, Active: k.ID == status.Active, AddedAt: call.Time(k.AddedAt), Sealed: int64(k.Sealed), Here: k.Here,
		})
	}
	return resp, err
}

// RotateSecretsKey makes a new key the one that encrypts secrets.
func (h *Handler) RotateSecretsKey(ctx context.Context,
	_ *hostv1.RotateSecretsKeyRequest,
) (*hostv1.RotateSecretsKeyResponse, error) {
	id, err := h.SecretsKeys.Rotate(ctx)
	return &hostv1.RotateSecretsKeyResponse{Id: id}, err
}

// GetSigningKeys tells which key signs JWTs, and how far its rotation is.
func (h *Handler) GetSigningKeys(ctx context.Context,
	_ *hostv1.GetSigningKeysRequest,
) (*hostv1.GetSigningKeysResponse, error) {
	keys, err := h.signingKeys(ctx)
	return &hostv1.GetSigningKeysResponse{Keys: keys}, err
}

// RotateSigningKey begins to replace the key that signs JWTs.
func (h *Handler) RotateSigningKey(ctx context.Context,
	_ *hostv1.RotateSigningKeyRequest,
) (*hostv1.RotateSigningKeyResponse, error) {
	if err := h.SigningKeys.RotateKey(ctx); err != nil {
		return nil, err
	}
	keys, err := h.signingKeys(ctx)
	return &hostv1.RotateSigningKeyResponse{Keys: keys}, err
}

func (h *Handler) signingKeys(ctx context.Context) (*hostv1.SigningKeys, error) {
	is, err := h.SigningKeys.Keys(ctx)
	if err != nil {
		return nil, err
	}
	keys := &hostv1.SigningKeys{Signs: signingKey(is.Signs), UnknownTo: is.UnknownTo}
	if is.Rotation.Phase != "" {
		keys.Other, keys.Since = signingKey(is.Rotation.Key), call.Time(is.Rotation.Since)
		keys.OtherState = keyStates[is.Rotation.Phase]
		keys.WaitsFor, keys.Stuck = is.WaitsFor, is.Stuck
	}
	return keys, nil
}

func signingKey(k claim.SigningKey) *hostv1.SigningKey {
	return &hostv1.SigningKey{Id: k.ID, Public: k.Public}
}

var keyStates = map[claim.RotationPhase]hostv1.SigningKeyState{
	claim.KeyPublished: hostv1.SigningKeyState_SIGNING_KEY_STATE_NEXT,
	claim.KeyReplaced:  hostv1.SigningKeyState_SIGNING_KEY_STATE_PREVIOUS,
	claim.KeyWithdrawn: hostv1.SigningKeyState_SIGNING_KEY_STATE_WITHDRAWN,
}

// CollectGarbage collects garbage now.
func (h *Handler) CollectGarbage(ctx context.Context,
	req *hostv1.CollectGarbageRequest,
) (*hostv1.CollectGarbageResponse, error) {
	// Only the leader decides which records are garbage.
	if err := h.Ledger.ReadLatest(ctx, func(*state.ReadTx) error { return nil }); err != nil {
		return nil, err
	}
	found, err := h.Watcher.Collect(ctx, req.GetDryRun())
	resp := &hostv1.CollectGarbageResponse{}
	for _, g := range found {
		resp.Garbage = append(resp.Garbage, &hostv1.Garbage{
			Kind: string(g.Kind), Namespace: g.Namespace, Id: g.ID, Reason: g.Reason, Since: call.Time(g.Since),
		})
	}
	return resp, err
}

// watched are Watch's topics by name.
var watched = map[string][]state.Topic{
	"volumes":   {state.TopicVolumes},
	"claims":    call.AllClaims,
	"nodes":     {state.TopicNodes},
	"workloads": {state.TopicWorkloads},
	"drivers":   {state.TopicDrivers},
}

// Watch sends a message at once, and whenever one of the topics may have changed. Changes while a message is sent are
// reported by one message.
func (h *Handler) Watch(ctx context.Context, req *hostv1.WatchRequest,
	stream *connect.ServerStream[hostv1.WatchResponse],
) error {
	var topics []state.Topic
	for _, name := range req.GetTopics() {
		if watched[name] == nil {
			return call.Invalid("watch", "topics",
				fmt.Sprintf("has %q, which is none of %s", call.Shortened(name), strings.Join(slices.Sorted(maps.Keys(watched)), ", ")))
		}
		topics = append(topics, watched[name]...)
	}
	if len(topics) == 0 {
		return call.Invalid("watch", "topics", "are missing: some of "+strings.Join(slices.Sorted(maps.Keys(watched)), ", "))
	}
	for told := uint64(0); ; {
		// Only the index is read.
		index, err := h.Ledger.ReadChanged(ctx, cluster.Blocking{MinIndex: told, Wait: call.MaxWait}, topics,
			func(*state.ReadTx) error { return nil })
		if err == nil && (told == 0 || index > told) {
			told = max(index, 1)
			err = stream.Send(&hostv1.WatchResponse{Index: index})
		}
		if err != nil {
			return err
		}
	}
}
