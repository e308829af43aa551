// Command greeter is the plugin of the example.
package main

import (
	"context"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pannier/pannier/host/internal/managed/examples/hotswap/shared"
)

var version = "1.0" // go build -ldflags "-X main.version=2.0"

type greeter struct{}

func (greeter) Greet(_ context.Context, name *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	return wrapperspb.String("version " + version + " greets " + name.GetValue()), nil
}

func main() {
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: shared.Handshake, Plugins: shared.Plugins(greeter{}), GRPCServer: goplugin.DefaultGRPCServer,
	})
}
