// Package shared is what the host and the plugin of the example agree on: a kind of plugin with one call, Greet.
package shared

import (
	"context"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Handshake is go-plugin's.
var Handshake = goplugin.HandshakeConfig{
	ProtocolVersion: 1, MagicCookieKey: "GREETER", MagicCookieValue: "hello",
}

// Greet is the name of the call.
const Greet = "/hotswap.Greeter/Greet"

// Greeter answers the call.
type Greeter interface {
	Greet(ctx context.Context, name *wrapperspb.StringValue) (*wrapperspb.StringValue, error)
}

// Plugins is go-plugin's set of one plugin; the host has no implementation.
func Plugins(impl Greeter) goplugin.PluginSet {
	return goplugin.PluginSet{"greeter": &plugin{impl: impl}}
}

type plugin struct {
	goplugin.NetRPCUnsupportedPlugin
	impl Greeter
}

// GRPCServer registers the service, as generated code does.
func (p *plugin) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "hotswap.Greeter", HandlerType: (*Greeter)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Greet",
			Handler: func(srv any, ctx context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				name := &wrapperspb.StringValue{}
				if err := read(name); err != nil {
					return nil, err
				}
				return srv.(Greeter).Greet(ctx, name)
			},
		}},
	}, p.impl)
	return nil
}

// GRPCClient returns the connection.
func (*plugin) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}
