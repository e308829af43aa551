package identity

import (
	"context"

	"google.golang.org/grpc"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/convert"
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

// list is the answer of List.
type list struct{ Tokens []Token }

func (s *server) Derive(ctx context.Context, req *identityv1.DeriveRequest) (*identityv1.DeriveResponse, error) {
	token, secret, err := s.impl.Derive(ctx, service.ConsulFromProto(req.GetConsul()), convert.From[DeriveRequest](req))
	return &identityv1.DeriveResponse{Token: convert.To[identityv1.Token](token), Secret: secret}, err
}

func (s *server) Read(ctx context.Context, req *identityv1.ReadRequest) (*identityv1.ReadResponse, error) {
	token, err := s.impl.Read(ctx, service.ConsulFromProto(req.GetConsul()), req.GetSecret())
	return &identityv1.ReadResponse{Token: convert.To[identityv1.Token](token)}, err
}

func (s *server) Revoke(ctx context.Context, req *identityv1.RevokeRequest) (*identityv1.RevokeResponse, error) {
	return &identityv1.RevokeResponse{}, s.impl.Revoke(ctx, service.ConsulFromProto(req.GetConsul()),
		Token{Accessor: req.GetAccessor(), Subject: convert.From[Subject](req.GetSubject())}, req.GetSecret())
}

func (s *server) List(ctx context.Context, req *identityv1.ListRequest) (*identityv1.ListResponse, error) {
	tokens, err := s.impl.List(ctx, service.ConsulFromProto(req.GetConsul()), req.GetCluster())
	return convert.To[identityv1.ListResponse](list{tokens}), err
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
	m := convert.To[identityv1.DeriveRequest](req)
	m.Consul = consul.ToProto()
	res, err := c.rpc.Derive(ctx, m)
	return convert.From[Token](res.GetToken()), res.GetSecret(), err
}

func (c *client) Read(ctx context.Context, consul service.Consul, secret string) (Token, error) {
	res, err := c.rpc.Read(ctx, &identityv1.ReadRequest{Consul: consul.ToProto(), Secret: secret})
	return convert.From[Token](res.GetToken()), err
}

func (c *client) Revoke(ctx context.Context, consul service.Consul, t Token, secret string) error {
	_, err := c.rpc.Revoke(ctx, &identityv1.RevokeRequest{
		Consul: consul.ToProto(), Accessor: t.Accessor, Secret: secret, Subject: convert.To[identityv1.Subject](t.Subject),
	})
	return err
}

func (c *client) List(ctx context.Context, consul service.Consul, cluster string) ([]Token, error) {
	res, err := c.rpc.List(ctx, &identityv1.ListRequest{Consul: consul.ToProto(), Cluster: cluster})
	return convert.From[list](res).Tokens, err
}

func (c *client) HasKey(ctx context.Context, consul service.Consul, jwt string) (bool, error) {
	res, err := c.rpc.HasKey(ctx, &identityv1.HasKeyRequest{Consul: consul.ToProto(), Jwt: jwt})
	return res.GetHas(), err
}
