// A csi-bridge that comes up like the real one, sees all drivers as that does, and then cannot publish a volume. It is
// for the demo and for tests.
package main

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/bridge"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

type failing struct{ *bridge.Bridge }

func (failing) Publish(context.Context, storage.Driver, storage.PublishRequest) error {
	return status.Error(codes.Internal, "this build of csi-bridge publishes no volume")
}

func main() {
	sdk.Main(sdk.Info{Name: "csi-bridge", Version: "0.0.0-failing"}, storage.Plugin(failing{bridge.New(sdk.Logger())}))
}
