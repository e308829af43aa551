// The least plugin: a server of go-plugin's, as its documentation has it, which is called by nobody. With the path of a
// CSI driver's socket it makes the calls of csi-bridge's fingerprints, as often.
package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

)

// lookEvery is csi-bridge's interval.
const lookEvery = 30 * time.Second

type nothing struct{ plugin.NetRPCUnsupportedPlugin }

func (nothing) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return nil }

func (nothing) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

// look makes the calls of a fingerprint.
func look(ctx context.Context, conn *grpc.ClientConn) error {
	identity, node := csi.NewIdentityClient(conn), csi.NewNodeClient(conn)
	_, probe := identity.Probe(ctx, &csi.ProbeRequest{})
	_, info := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	_, plugin := identity.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	_, controller := csi.NewControllerClient(conn).ControllerGetCapabilities(ctx,
		&csi.ControllerGetCapabilitiesRequest{})
	_, able := node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	_, id := node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	return errors.Join(probe, info, plugin, controller, able, id)
}

func main() {
	if len(os.Args) > 1 {
		conn, err := grpc.NewClient("unix:"+os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			panic(err)
		}
		go func() {
			for ; ; time.Sleep(lookEvery) {
				if err := look(context.Background(), conn); err != nil {
					panic(err)
				}
			}
		}()
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: plugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "BENCH", MagicCookieValue: "1"},
		Plugins:         plugin.PluginSet{"nothing": nothing{}},
		GRPCServer:      plugin.DefaultGRPCServer,
	})
}
