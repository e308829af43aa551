package peer

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster/claim"
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

// Apply admits or refuses each command individually, and applies the admitted ones together.
func (s serversService) Apply(ctx context.Context, req *peerv1.ApplyRequest) (*peerv1.ApplyResponse, error) {
	if n := len(req.GetEntries()); n == 0 || n > maxEntries {
		return nil, status.Errorf(codes.InvalidArgument,
			"the call carries %d commands: at least 1 and at most %d are allowed", n, maxEntries)
	}
	n, err := sender(ctx, s.leader)
	if err != nil {
		return nil, err
	}
	var (
		resp     = &peerv1.ApplyResponse{Applied: make([]*peerv1.Applied, len(req.GetEntries()))}
		commands []command.Command
		of       []int // commands[i] is entry of[i]
		callers  = make([]caller, len(req.GetEntries()))
	)
	for i, entry := range req.GetEntries() {
		c, err := command.Decode(entry)
		if err == nil {
			callers[i] = n.forCaller("", nil)
			if len(req.GetCallers()) == len(req.GetEntries()) {
				by := req.GetCallers()[i]
				callers[i] = n.forCaller(by.GetToken(), by.GetGrant())
			}
			err = callers[i].admitCommand(ctx, c)
		}
		if err == nil {
			commands, of = append(commands, c), append(of, i)
			continue
		}
		if resp.Applied[i], err = s.applied(ctx, nil, err); err != nil {
			return nil, err
		}
	}
	for i, a := range s.leader.Ledger.ApplyFor(ctx, commands...) {
		outcome, err := []byte(nil), a.Err
		if !deposed(err) {
			outcome, err = command.EncodeOutcome(a.Result, a.Err)
		}
		if resp.Applied[of[i]], err = s.applied(ctx, outcome, err); err != nil {
			return nil, err
		}
		if a.Err == nil {
			resp.Applied[of[i]].Grant = callers[of[i]].grantFor(commands[i])
		}
	}
	return resp, nil
}

// applied encodes the outcome of one command, or the reason why there is none.
func (s serversService) applied(ctx context.Context, outcome []byte, err error) (*peerv1.Applied, error) {
	if err == nil {
		return &peerv1.Applied{Outcome: outcome}, nil
	}
	refused := s.guard.refuse(ctx, peerv1.ServersService_Apply_FullMethodName, err)
	text, err := proto.Marshal(status.Convert(refused).Proto())
	return &peerv1.Applied{Error: text}, err
}

func (s serversService) Query(ctx context.Context, req *peerv1.QueryRequest) (*peerv1.QueryResponse, error) {
	q, sees, err := admitQuery(ctx, s.leader, req.GetQuery())
	if err != nil {
		return nil, err
	}
	result, index, err := s.leader.Ledger.AnswerQuery(ctx, q)
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
	n, err := sender(ctx, s.leader)
	if err == nil && !n.isServer() {
		err = n.tokenOf(ctx, t)
	}
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
	encoded, err := json.Marshal(derived)
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
	n, err := sender(ctx, s.leader)
	if err == nil && !n.isServer() {
		err = n.mayReplace(ctx, ref)
	}
	if err == nil {
		err = s.leader.Replace(ctx, req.GetNode(), ref, req.GetReason())
	}
	return &peerv1.ReplaceWorkloadResponse{}, err
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

// decode decodes a JSON field of a message.
func decode[T any](data []byte) (out T, err error) {
	if err := json.Unmarshal(data, &out); err != nil {
		return out, status.Errorf(codes.InvalidArgument, "the message carries no %T: %v", out, err)
	}
	return out, nil
}
