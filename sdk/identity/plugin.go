package identity

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/internal/outcome"
	identityv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/identity/v1"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/sdk/wire"
)

// Plugin serves an implementation: sdk.Main(info, identity.Plugin(impl)).
func Plugin(impl Identity) sdk.Plugin {
	return sdk.Plugin{
		Kind: Kind,
		Impl: impl,
		Register: func(r grpc.ServiceRegistrar) {
			identityv1.RegisterIdentityServiceServer(r, &server{impl: impl})
		},
	}
}

// server adapts an implementation to the protocol.
type server struct {
	identityv1.UnimplementedIdentityServiceServer
	impl Identity
}

func (s *server) Derive(ctx context.Context, req *identityv1.DeriveRequest) (*identityv1.DeriveResponse, error) {
	token, secret, err := s.impl.Derive(ctx, service.ConsulFromProto(req.GetConsul()), DeriveRequest{
		ID: req.GetId(), Subject: subjectFrom(req.GetSubject()), JWT: req.GetJwt(),
	})
	return &identityv1.DeriveResponse{Token: tokenTo(token), Secret: secret}, err
}

// DeriveBatch calls Derive for each request, all at once.
func (s *server) DeriveBatch(ctx context.Context, req *identityv1.DeriveBatchRequest) (*identityv1.DeriveBatchResponse,
	error,
) {
	reqs := req.GetRequests()
	if len(reqs) == 0 || len(reqs) > MaxBatch {
		return nil, status.Errorf(codes.InvalidArgument, "derive a batch of %d tokens: it must have 1 to %d requests",
			len(reqs), MaxBatch)
	}
	results := make([]*identityv1.DeriveResult, len(reqs))
	var all sync.WaitGroup
	for n, one := range reqs {
		all.Go(func() {
			res, err := s.deriveOne(ctx, &identityv1.DeriveRequest{
				Consul: req.GetConsul(), Id: one.GetId(), Subject: one.GetSubject(), Jwt: one.GetJwt(),
			})
			results[n] = &identityv1.DeriveResult{Id: one.GetId(), Token: res.GetToken(), Secret: res.GetSecret()}
			if err != nil {
				failed := status.Convert(outcome.Status(err))
				results[n] = &identityv1.DeriveResult{
					Id: one.GetId(), Code: uint32(failed.Code()), Message: failed.Message(),
				}
			}
		})
	}
	all.Wait()
	return &identityv1.DeriveBatchResponse{Results: results}, nil
}

// deriveOne is Derive for a request of a batch: a panic fails that one only.
func (s *server) deriveOne(ctx context.Context, req *identityv1.DeriveRequest) (res *identityv1.DeriveResponse,
	err error,
) {
	defer outcome.Rescue(sdk.Logger(), identityv1.IdentityService_DeriveBatch_FullMethodName, &err)
	return s.Derive(ctx, req)
}

func (s *server) Read(ctx context.Context, req *identityv1.ReadRequest) (*identityv1.ReadResponse, error) {
	token, err := s.impl.Read(ctx, service.ConsulFromProto(req.GetConsul()), req.GetSecret())
	return &identityv1.ReadResponse{Token: tokenTo(token)}, err
}

func (s *server) Revoke(ctx context.Context, req *identityv1.RevokeRequest) (*identityv1.RevokeResponse, error) {
	return &identityv1.RevokeResponse{}, s.impl.Revoke(ctx, service.ConsulFromProto(req.GetConsul()), req.GetAccessor(),
		req.GetSecret())
}

func (s *server) List(ctx context.Context, req *identityv1.ListRequest) (*identityv1.ListResponse, error) {
	tokens, err := s.impl.List(ctx, service.ConsulFromProto(req.GetConsul()), req.GetCluster())
	res := &identityv1.ListResponse{}
	for _, t := range tokens {
		res.Tokens = append(res.Tokens, tokenTo(t))
	}
	return res, err
}

func (s *server) HasKey(ctx context.Context, req *identityv1.HasKeyRequest) (*identityv1.HasKeyResponse, error) {
	checker, ok := s.impl.(KeyChecker)
	if !ok {
		return s.UnimplementedIdentityServiceServer.HasKey(ctx, req)
	}
	has, err := checker.HasKey(ctx, service.ConsulFromProto(req.GetConsul()), req.GetJwt())
	return &identityv1.HasKeyResponse{Has: has}, err
}

// NewClient returns the host's client of an identity plugin. It is a KeyChecker too, which answers Unimplemented if the
// plugin is none. Errors are the plugin's gRPC status errors,
// unchanged.
func NewClient(conn grpc.ClientConnInterface) Client {
	return &client{conn: conn, rpc: identityv1.NewIdentityServiceClient(conn)}
}

type client struct {
	conn grpc.ClientConnInterface
	rpc  identityv1.IdentityServiceClient
}

func (c *client) Derive(ctx context.Context, consul service.Consul, req DeriveRequest) (Token, string, error) {
	res, err := c.rpc.Derive(ctx, &identityv1.DeriveRequest{
		Consul: consul.ToProto(), Id: req.ID,
		Subject: subjectTo(req.Subject), Jwt: req.JWT,
	})
	return tokenFrom(res.GetToken()), res.GetSecret(), err
}

func (c *client) DeriveBatch(ctx context.Context, consul service.Consul, reqs []DeriveRequest) ([]Derived, error) {
	in := &identityv1.DeriveBatchRequest{Consul: consul.ToProto()}
	for _, r := range reqs {
		in.Requests = append(in.Requests, &identityv1.DeriveRequest{Id: r.ID, Subject: subjectTo(r.Subject), Jwt: r.JWT})
	}
	out := &identityv1.DeriveBatchResponse{}
	parts := wire.NewParts(identityv1.IdentityService_Derive_FullMethodName, len(reqs), func() ([]error, error) {
		return batchErrors(reqs, out.GetResults())
	})
	err := c.conn.Invoke(ctx, identityv1.IdentityService_DeriveBatch_FullMethodName, in, out, parts)
	if err != nil {
		return nil, err
	}
	errs, err := parts.Errors()
	if err != nil {
		return nil, err
	}
	results := make([]Derived, len(reqs))
	for n, r := range out.GetResults() {
		if results[n].Err = errs[n]; errs[n] == nil {
			results[n].Token, results[n].Secret = tokenFrom(r.GetToken()), r.GetSecret()
		}
	}
	return results, nil
}

// batchErrors returns the error of each result, or refuses all of them: if they are not those of the requests, one of
// them may be another workload's token.
func batchErrors(reqs []DeriveRequest, results []*identityv1.DeriveResult) ([]error, error) {
	ids := make([]string, len(reqs))
	for n, r := range reqs {
		ids[n] = r.ID
	}
	return outcome.OfBatch("DeriveBatch", "id", ids, results, (*identityv1.DeriveResult).GetId)
}

func (c *client) Read(ctx context.Context, consul service.Consul, secret string) (Token, error) {
	res, err := c.rpc.Read(ctx, &identityv1.ReadRequest{Consul: consul.ToProto(), Secret: secret})
	return tokenFrom(res.GetToken()), err
}

func (c *client) Revoke(ctx context.Context, consul service.Consul, accessor, secret string) error {
	_, err := c.rpc.Revoke(ctx, &identityv1.RevokeRequest{Consul: consul.ToProto(), Accessor: accessor, Secret: secret})
	return err
}

func (c *client) List(ctx context.Context, consul service.Consul, cluster string) ([]Token, error) {
	res, err := c.rpc.List(ctx, &identityv1.ListRequest{Consul: consul.ToProto(), Cluster: cluster})
	var out []Token
	for _, t := range res.GetTokens() {
		out = append(out, tokenFrom(t))
	}
	return out, err
}

func (c *client) HasKey(ctx context.Context, consul service.Consul, jwt string) (bool, error) {
	res, err := c.rpc.HasKey(ctx, &identityv1.HasKeyRequest{Consul: consul.ToProto(), Jwt: jwt})
	return res.GetHas(), err
}

func subjectTo(s Subject) *identityv1.Subject {
	return &identityv1.Subject{
		Cluster: s.Cluster, Node: s.Node, Namespace: s.Namespace, Workload: s.Workload,
		Service: s.Service,
	}
}

func subjectFrom(s *identityv1.Subject) Subject {
	return Subject{
		Cluster: s.GetCluster(), Node: s.GetNode(), Namespace: s.GetNamespace(), Workload: s.GetWorkload(),
		Service: s.GetService(),
	}
}

func tokenTo(t Token) *identityv1.Token {
	return &identityv1.Token{
		Accessor: t.Accessor, Subject: subjectTo(t.Subject), CreatedAt: timeTo(t.CreatedAt),
		ExpiresAt: timeTo(t.ExpiresAt),
	}
}

func tokenFrom(t *identityv1.Token) Token {
	return Token{
		Accessor: t.GetAccessor(), Subject: subjectFrom(t.GetSubject()), CreatedAt: timeFrom(t.GetCreatedAt()),
		ExpiresAt: timeFrom(t.GetExpiresAt()),
	}
}

// timeTo returns nil for the zero time.
func timeTo(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func timeFrom(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
