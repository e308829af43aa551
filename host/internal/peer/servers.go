package peer

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/tracing"
	"github.com/pannier/pannier/host/internal/workload/onbehalf"
)

// How long one server may take before another one is tried. A server that is cut off is noticed earlier, by the
// connection (package transport).
const (
	applyTimeout     = 10 * time.Second
	queryTimeout     = 10 * time.Second // in addition to the time that the query itself waits
	heartbeatTimeout = 3 * time.Second
	callTimeout      = 3 * time.Minute // calls to a driver or Consul have their own timeouts there
)

// Dialer connects to agents (*transport.Dialer).
type Dialer interface {
	Conn(addr, name string, role pki.Role) (*grpc.ClientConn, error)
	// Transport sends requests of the API to servers.
	Transport() http.RoundTripper
}

// ServersConfig is what Servers work with.
type ServersConfig struct {
	// Name is this agent's, Secret its node's, and BootID its machine's.
	Name   string
	Secret Secret
	BootID string
	// Servers lists the cluster's servers, as serf knows them.
	Servers func() []route.Member
	Dialer  Dialer
	// Terms of leaders that this agent has seen.
	Terms *Terms
}

// Servers makes an agent's calls to the leader, which it finds and waits for until the caller's context ends. If this
// agent's own server leads, no connection is made. It is safe for concurrent use.
type Servers struct {
	*route.Router
	cfg   ServersConfig
	local atomic.Pointer[Leader]
}

// NewServers makes Servers.
func NewServers(cfg ServersConfig) *Servers {
	s := &Servers{cfg: cfg}
	s.Router = route.New(route.Config{
		Name: cfg.Name, Servers: cfg.Servers, Transport: cfg.Dialer.Transport(),
		Probe: s.probe,
	})
	return s
}

// identify sends with the calls of a context what shows which machine this is, and in which boot, and for whom the
// calls are made.
func (s *Servers) identify(ctx context.Context) context.Context {
	ctx = metadata.AppendToOutgoingContext(ctx, secretKey, s.cfg.Secret.text, bootKey, s.cfg.BootID)
	token, grant := onbehalf.From(ctx).Credentials()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, tokenKey, token)
	}
	if len(grant) > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, grantKey, string(grant))
	}
	return ctx
}

// SetLocal makes this agent's own server answer calls while it leads.
func (s *Servers) SetLocal(l *Leader) {
	s.local.Store(l)
	s.Router.SetLocal(l.Ledger)
}

// Apply sends a command to the leader (cluster.Ledger). The command is sent again under its key if it may not have been
// applied. Errors when ctx ends first: command.ErrUncertain, or command.ErrNotLeader if it was certainly not applied.
func (s *Servers) Apply(ctx context.Context, c command.Command) (result any, err error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if err := cluster.SetKey(ctx, c); err != nil {
		return nil, err
	}
	entry, err := command.Encode(c)
	if err != nil {
		return nil, err
	}
	var outcome []byte // of another server
	err = s.Do(ctx, route.Call{
		Timeout: applyTimeout,
		Here: func(ctx context.Context) (err error) {
			result, err = s.local.Load().Ledger.ApplyHere(ctx, c)
			return answerHere(err, true)
		},
		There: func(ctx context.Context, m route.Member) error {
			ctx, span := tracing.Span(s.identify(ctx), "forward to the leader", tracing.Node.String(s.cfg.Name))
			to, err := s.client(m)
			if err == nil {
				var resp *peerv1.ApplyResponse
				resp, err = to.Apply(ctx, &peerv1.ApplyRequest{Node: s.cfg.Name, Entry: entry})
				onbehalf.From(ctx).Granted(resp.GetGrant())
				outcome = resp.GetOutcome()
			}
			tracing.End(span, err)
			return answerThere(err, true)
		},
	})
	if err != nil || outcome == nil {
		return result, err
	}
	return command.DecodeOutcome(c, outcome)
}

// Ask sends a query to the leader (cluster.Ledger). The error is command.ErrNotLeader if ctx ends first.
func (s *Servers) Ask(ctx context.Context, q command.Query) (answer any, index uint64, err error) {
	query, err := command.EncodeQuery(q)
	if err != nil {
		return nil, 0, err
	}
	var encoded []byte // by another server
	b := q.Blocks()
	err = s.Do(ctx, route.Call{
		Timeout: queryTimeout + b.Wait, Patient: b.Wait > 0 && b.MinIndex > 0,
		Here: func(ctx context.Context) (err error) {
			answer, index, err = s.local.Load().Ledger.AskHere(ctx, q)
			return answerHere(err, false)
		},
		There: func(ctx context.Context, m route.Member) (err error) {
			encoded, err = s.query(ctx, m, query)
			return err
		},
	})
	if err != nil || encoded == nil {
		return answer, index, err
	}
	return command.DecodeAnswer(q, encoded)
}

// client makes calls to a server.
func (s *Servers) client(m route.Member) (peerv1.ServersServiceClient, error) {
	conn, err := s.cfg.Dialer.Conn(m.Addr, m.Name, pki.Server)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return peerv1.NewServersServiceClient(conn), nil
}

// answerHere is the error of a call on this agent's own server: its answer, or a *route.NotLeader. changes is true if
// the call may have its effect even if no answer arrives.
func answerHere(err error, changes bool) error {
	if deposed(err) {
		return &route.NotLeader{Uncertain: changes && uncertain(err), Err: err}
	}
	return err
}

// answerThere is the error of a call on another server, as of answerHere.
func answerThere(err error, changes bool) error {
	if isAnswer(err) {
		return received(err)
	}
	redirect, ok := detail[*peerv1.NotLeader](err)
	return &route.NotLeader{
		Leader:    route.Member{Name: redirect.GetLeader(), Addr: redirect.GetAddress()},
		Uncertain: changes && (!ok || redirect.GetUncertain()), Unreached: !ok, Err: received(err),
	}
}

// isAnswer reports whether any other server would give the same answer.
func isAnswer(err error) bool {
	if _, ok := detail[*peerv1.Answer](err); ok || err == nil {
		return true
	}
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.ResourceExhausted,
		codes.Unimplemented:
		return true
	default:
		return false
	}
}

// probe asks a server for the cluster's identity, which only the leader answers.
func (s *Servers) probe(ctx context.Context, m route.Member) error {
	query, err := command.EncodeQuery(&command.QueryCluster{})
	if err != nil {
		return err
	}
	_, err = s.query(ctx, m, query)
	return err
}

// query sends a query to a server. The error is its answer, or a *route.NotLeader.
func (s *Servers) query(ctx context.Context, m route.Member, query []byte) (answer []byte, err error) {
	to, err := s.client(m)
	if err == nil {
		var resp *peerv1.QueryResponse
		resp, err = to.Query(s.identify(ctx), &peerv1.QueryRequest{Node: s.cfg.Name, Query: query})
		answer = resp.GetAnswer()
	}
	return answer, answerThere(err, false)
}

// onLeader makes a call that may be repeated on the leader: this server, or another one. timeout bounds each attempt at
// another server.
func onLeader[Q, A any](ctx context.Context, s *Servers, timeout time.Duration, req Q,
	here func(serversService, context.Context, Q) (A, error),
	there func(peerv1.ServersServiceClient, context.Context, Q, ...grpc.CallOption) (A, error),
) (resp A, err error) {
	err = s.Do(ctx, route.Call{
		Timeout: timeout,
		Here: func(ctx context.Context) (err error) {
			resp, err = here(serversService{leader: s.local.Load()}, ctx, req)
			return answerHere(err, false)
		},
		There: func(ctx context.Context, m route.Member) error {
			to, err := s.client(m)
			if err == nil {
				resp, err = there(to, s.identify(ctx), req)
			}
			return answerThere(err, false)
		},
	})
	return resp, err
}

// Heartbeat tells the leader that this node is alive (lease.Servers). The leader makes sure first that it still leads.
func (s *Servers) Heartbeat(ctx context.Context, node string) (lease.Answer, error) {
	resp, err := onLeader(ctx, s, heartbeatTimeout, &peerv1.HeartbeatRequest{Node: node, BootId: s.cfg.BootID},
		serversService.Heartbeat, peerv1.ServersServiceClient.Heartbeat)
	if err == nil {
		err = s.cfg.Terms.Answered(resp.GetTerm())
	}
	if err != nil {
		return lease.Answer{}, fmt.Errorf("heartbeat of node %q: %w", node, err)
	}
	return lease.Answer{
		Status: claim.NodeStatus(resp.GetStatus()), Index: resp.GetIndex(), LostIndex: resp.GetLostIndex(),
		Liveness: claim.Liveness{
			HeartbeatTTL: resp.GetHeartbeatTtl().AsDuration(), StopAfter: resp.GetStopAfter().AsDuration(),
			Margin: resp.GetMargin().AsDuration(),
		},
	}, nil
}

// Attach attaches a volume that this node holds a claim on to this node (CSI spec, ControllerPublishVolume), through a
// controller that the leader picks.
func (s *Servers) Attach(ctx context.Context, v claim.Volume, modes claim.Capability,
	node string,
) (publishContext map[string]string, err error) {
	capability := drivers.StorageCapability(v.MountOptions, modes)
	resp, err := onLeader(ctx, s, callTimeout, &peerv1.AttachRequest{
		Node: node, Namespace: v.Namespace, Volume: v.ID,
		AccessMode: string(modes.AccessMode), AttachmentMode: string(modes.AttachmentMode),
		FsType: capability.FSType, MountFlags: capability.MountFlags, VolumeMountGroup: capability.VolumeMountGroup,
	},
		serversService.Attach, peerv1.ServersServiceClient.Attach)
	return resp.GetPublishContext(), err
}

// VolumeSecrets are the secrets of a volume that this node holds a claim on.
func (s *Servers) VolumeSecrets(ctx context.Context, v claim.Volume) (secrets map[string]string, err error) {
	if len(v.SealedSecrets) == 0 {
		return nil, nil
	}
	resp, err := onLeader(ctx, s, queryTimeout, &peerv1.VolumeSecretsRequest{
		Node: s.cfg.Name, Namespace: v.Namespace,
		Volume: v.ID,
	},
		serversService.VolumeSecrets, peerv1.ServersServiceClient.VolumeSecrets)
	return resp.GetSecrets(), err
}

// StopWorkload requests the end of a workload that one of this node's waits for, and does not wait for it. The leader
// looks up which node it runs on.
func (s *Servers) StopWorkload(ctx context.Context, _ string, ref claim.WorkloadRef, reason string) error {
	_, err := onLeader(ctx, s, callTimeout, &peerv1.ReplaceWorkloadRequest{
		Node: s.cfg.Name, Namespace: ref.Namespace, Workload: ref.ID, Reason: reason,
	},
		serversService.ReplaceWorkload, peerv1.ServersServiceClient.ReplaceWorkload)
	return err
}

// NodeTokens give a node's services their tokens: the leader asks Consul for them, and
// the node's own Consul agent is where they are read back. It implements servicesteps.Tokens.
type NodeTokens struct {
	*Servers
	// Local reads a token back from this node's Consul agent (tokens.Authority).
	Local interface {
		Read(ctx context.Context, t claim.Token, secret string) error
	}
}

// Intend notes in the ledger that Consul will be asked for a token.
func (n NodeTokens) Intend(ctx context.Context, t claim.Token) error {
	encoded, err := codec.Marshal(t)
	if err != nil {
		return err
	}
	_, err = onLeader(ctx, n.Servers, callTimeout, &peerv1.IntendTokenRequest{Node: n.cfg.Name, Token: encoded},
		serversService.IntendToken, peerv1.ServersServiceClient.IntendToken)
	return err
}

// Derive has the leader ask Consul for the token that the ledger knows as t.ID.
func (n NodeTokens) Derive(ctx context.Context, t claim.Token) (derived claim.Token, secret string, err error) {
	encoded, err := codec.Marshal(t)
	if err != nil {
		return derived, "", err
	}
	resp, err := onLeader(ctx, n.Servers, callTimeout, &peerv1.DeriveTokenRequest{Node: n.cfg.Name, Token: encoded},
		serversService.DeriveToken, peerv1.ServersServiceClient.DeriveToken)
	if err != nil {
		return derived, "", err
	}
	derived, err = decode[claim.Token](resp.GetToken())
	return derived, resp.GetSecret(), err
}

// Revoke has the leader revoke a token, and forget it once Consul has said that it is gone.
func (n NodeTokens) Revoke(ctx context.Context, t claim.Token, secret string) error {
	encoded, err := codec.Marshal(t)
	if err != nil {
		return err
	}
	_, err = onLeader(ctx, n.Servers, callTimeout, &peerv1.RevokeTokenRequest{
		Node: n.cfg.Name, Token: encoded,
		Secret: secret,
	},
		serversService.RevokeToken, peerv1.ServersServiceClient.RevokeToken)
	return err
}

// Read reads a token back from this node's Consul agent.
func (n NodeTokens) Read(ctx context.Context, t claim.Token, secret string) error {
	return n.Local.Read(ctx, t, secret)
}

// Forget removes the record of a token that Consul has never made.
func (n NodeTokens) Forget(ctx context.Context, t claim.Token) error {
	_, err := cluster.Apply(ctx, n, &command.DeleteTokens{IDs: []string{t.ID}})
	return err
}

// OnNode lists the ledger's tokens of a node.
func (n NodeTokens) OnNode(ctx context.Context, node string) ([]claim.Token, error) {
	tokens, _, err := cluster.Ask(ctx, n, &command.QueryTokens{Node: node}, cluster.Blocking{})
	return tokens, err
}
