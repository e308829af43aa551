package peer

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/cluster/command"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
)

// serversService serves agents' calls to the leader. The guard has checked that this server leads, and that the node
// named in a request is the caller.
type serversService struct {
	peerv1.UnimplementedServersServiceServer
	leader *Leader
	guard  *guard
}

func (s serversService) Apply(ctx context.Context, req *peerv1.ApplyRequest) (*peerv1.ApplyResponse, error) {
	n, err := sender(ctx, s.leader)
	if err != nil {
		return nil, err
	}
	c, err := command.Decode(req.GetEntry())
	if err != nil {
		return nil, err
	}
	n.allowed = &allowance{}
	if err := n.admitCommand(ctx, c); err != nil {
		return nil, err
	}
	result, refusal := s.leader.Ledger.ApplyHere(ctx, c)
	if deposed(refusal) {
		return nil, refusal
	}
	resp := &peerv1.ApplyResponse{}
	if refusal == nil {
		resp.Grant = n.grantFor(c)
	}
	resp.Outcome, err = command.EncodeOutcome(result, refusal)
	return resp, err
}

func (s serversService) Query(ctx context.Context, req *peerv1.QueryRequest) (*peerv1.QueryResponse, error) {
	q, sees, err := admitQuery(ctx, s.leader, req.GetQuery())
	if err != nil {
		return nil, err
	}
	result, index, err := s.leader.Ledger.AskHere(ctx, q)
	if deposed(err) || err != nil && ctx.Err() != nil {
		return nil, err
	}
	result, err = sees(result, err)
	answer, err := command.EncodeAnswer(result, index, err)
	return &peerv1.QueryResponse{Answer: answer}, err
}

func (s serversService) Heartbeat(ctx context.Context, req *peerv1.HeartbeatRequest) (*peerv1.HeartbeatResponse,
	error,
) {
	a, err := s.leader.Heartbeats.Answer(ctx, req.GetNode(), req.GetBootId())
	return &peerv1.HeartbeatResponse{
		Status: string(a.Status), Index: a.Index, LostIndex: a.LostIndex, Term: s.leader.Ledger.Term(),
		HeartbeatTtl: durationpb.New(a.Liveness.HeartbeatTTL),
		StopAfter:    durationpb.New(a.Liveness.StopAfter),
		Margin:       durationpb.New(a.Liveness.Margin),
	}, err
}

func (s serversService) Attach(ctx context.Context, req *peerv1.AttachRequest) (*peerv1.AttachResponse, error) {
	publishContext, err := s.leader.Attach(ctx, req.GetNode(),
		claim.VolumeRef{Namespace: req.GetNamespace(), ID: req.GetVolume()},
		claim.Capability{
			AccessMode:     claim.AccessMode(req.GetAccessMode()),
			AttachmentMode: claim.AttachmentMode(req.GetAttachmentMode()),
		},
		claim.MountOptions{FSType: req.GetFsType(), Flags: req.GetMountFlags(), Group: req.GetVolumeMountGroup()})
	return &peerv1.AttachResponse{PublishContext: publishContext}, err
}

func (s serversService) VolumeSecrets(ctx context.Context,
	req *peerv1.VolumeSecretsRequest,
) (*peerv1.VolumeSecretsResponse, error) {
	secrets, err := s.leader.VolumeSecrets(ctx, req.GetNode(),
		claim.VolumeRef{Namespace: req.GetNamespace(), ID: req.GetVolume()})
	return &peerv1.VolumeSecretsResponse{Secrets: secrets}, err
}

func (s serversService) IntendToken(ctx context.Context, req *peerv1.IntendTokenRequest) (*peerv1.IntendTokenResponse,
	error,
) {
	t, err := ownToken(req)
	if err != nil {
		return nil, err
	}
	err = s.checkNode(ctx, func(n caller) error { return n.tokenOf(ctx, t) })
	if err == nil {
		err = s.leader.Tokens.Intend(ctx, t)
	}
	return &peerv1.IntendTokenResponse{}, err
}

func (s serversService) DeriveToken(ctx context.Context, req *peerv1.DeriveTokenRequest) (*peerv1.DeriveTokenResponse,
	error,
) {
	t, err := ownToken(req)
	if err != nil {
		return nil, err
	}
	derived, secret, err := s.leader.Tokens.Derive(ctx, t)
	if err != nil {
		return nil, err
	}
	noteAccessor(ctx, derived)
	encoded, err := codec.Marshal(derived)
	return &peerv1.DeriveTokenResponse{Token: encoded, Secret: secret}, err
}

func (s serversService) RevokeToken(ctx context.Context, req *peerv1.RevokeTokenRequest) (*peerv1.RevokeTokenResponse,
	error,
) {
	t, err := ownToken(req)
	if err == nil {
		err = s.leader.RevokeToken(ctx, req.GetNode(), t, req.GetSecret())
	}
	return &peerv1.RevokeTokenResponse{}, err
}

func (s serversService) ReplaceWorkload(ctx context.Context,
	req *peerv1.ReplaceWorkloadRequest,
) (*peerv1.ReplaceWorkloadResponse, error) {
	ref := claim.WorkloadRef{Namespace: req.GetNamespace(), ID: req.GetWorkload()}
	err := s.checkNode(ctx, func(n caller) error { return n.mayReplace(ctx, ref) })
	if err == nil {
		err = s.leader.Replace(ctx, req.GetNode(), ref, req.GetReason())
	}
	return &peerv1.ReplaceWorkloadResponse{}, err
}

// checkNode checks a call that a plain node makes. Servers, including this one when it calls itself without the guard,
// may make it.
func (s serversService) checkNode(ctx context.Context, check func(n caller) error) error {
	if s.guard == nil {
		return nil
	}
	n, err := sender(ctx, s.leader)
	if err != nil || n.isServer() {
		return err
	}
	return check(n)
}

// ownToken reads the token of a request, which must be the caller's.
func ownToken(req interface {
	GetNode() string
	GetToken() []byte
},
) (t claim.Token, err error) {
	if t, err = decode[claim.Token](req.GetToken()); err != nil {
		return t, err
	}
	if t.Node != req.GetNode() {
		return t, denied(fmt.Sprintf("node %q asks about a token of node %q: nodes act for themselves only", req.GetNode(),
			t.Node))
	}
	return t, nil
}

// decode decodes a record in a message.
func decode[T any](data []byte) (out T, err error) {
	if err := codec.Unmarshal(data, &out); err != nil {
		return out, status.Errorf(codes.InvalidArgument, "the message carries no %T: %v", out, err)
	}
	return out, nil
}
