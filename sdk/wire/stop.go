package wire

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

// Stop asks a plugin's process to finish its calls and to end. If it returns hangUp, the host closes the connection
// once the calls have ended: go-plugin's own streams end with it only, and gRPC's GracefulStop waits for them. The SDK
// ends them itself, and needs the connection until its end; a plugin that does not have HostService is written without
// it.
func Stop(ctx context.Context, conn grpc.ClientConnInterface) (hangUp bool, err error) {
	_, err = pluginv1.NewHostServiceClient(conn).Metrics(ctx, &pluginv1.MetricsRequest{})
	hangUp = status.Code(err) == codes.Unimplemented
	_, err = pluginv1.NewPluginServiceClient(conn).Stop(ctx, &pluginv1.StopRequest{})
	return hangUp, err
}
