package identity

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/sdk"
	identityv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/identity/v1"
	"github.com/pannier/pannier/sdk/service"
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
// plugin is none. Errors are the plugin's gRPC status errors, unchanged.
func NewClient(conn grpc.ClientConnInterface) Identity {
	return &client{rpc: identityv1.NewIdentityServiceClient(conn)}
}

type client struct {
	rpc identityv1.IdentityServiceClient
}

func (c *client) Derive(ctx context.Context, consul service.Consul, req DeriveRequest) (Token, string, error) {
	res, err := c.rpc.Derive(ctx, &identityv1.DeriveRequest{
		Consul: consul.ToProto(), Id: req.ID,
		Subject: subjectTo(req.Subject), Jwt: req.JWT,
	})
	return tokenFrom(res.GetToken()), res.GetSecret(), err
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
