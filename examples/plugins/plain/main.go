// Command plain is a plugin of the kind bootstrap, written with hashicorp/go-plugin and Pannier's protobuf files alone,
// without the SDK. plugin.go is what every kind needs, this file what it does.
package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	bootstrapv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/bootstrap/v1"
)

func main() {
	// This logger writes to the host's log file, whether a host runs or not. What is printed to os.Stdout and os.Stderr
	// once go-plugin serves goes there through a pipe, which only a connected host empties.
	log := hclog.New(&hclog.LoggerOptions{Output: os.Stderr, JSONFormat: true})
	p := newPlugin(log, func(s *grpc.Server) { bootstrapv1.RegisterBootstrapServiceServer(s, bootstrap{}) })
	config := &goplugin.ServeConfig{
		HandshakeConfig: goplugin.HandshakeConfig{
			MagicCookieKey: "PANNIER_PLUGIN", MagicCookieValue: "a-pannier-carries-things-at-the-side",
		},
		VersionedPlugins: map[int]goplugin.PluginSet{1: {"pannier": p}},
		TLSProvider:      loadTLS,
		GRPCServer:       p.newServer,
		Logger:           log,
	}
	if os.Getenv("PLAIN_DEBUG") != "" {
		debug(p, config)
		return
	}
	goplugin.Serve(config)
}

// debug serves under a debugger, and prints what belongs into reattach.json in an agent's data directory.
func debug(p *plugin, config *goplugin.ServeConfig) {
	p.hosts++ // it does not end by itself
	ch := make(chan *goplugin.ReattachConfig)
	config.TLSProvider, config.Test = nil, &goplugin.ServeTestConfig{ReattachConfigCh: ch}
	go func() {
		c := <-ch
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"plain": map[string]any{
			"Protocol": c.Protocol, "ProtocolVersion": c.ProtocolVersion, "Pid": c.Pid, "Test": c.Test,
			"Addr": map[string]string{"Network": c.Addr.Network(), "String": c.Addr.String()},
		}})
	}()
	goplugin.Serve(config)
}

type bootstrap struct {
	bootstrapv1.UnimplementedBootstrapServiceServer
}

// Generate returns the file that a proxy is started with. The same request gives the same bytes.
func (bootstrap) Generate(_ context.Context, req *bootstrapv1.GenerateRequest) (*bootstrapv1.GenerateResponse, error) {
	if file := req.GetTokenFile(); file != "" {
		if _, err := os.ReadFile(file); err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "read the token: %v", err)
		}
	}
	content, err := json.MarshalIndent(map[string]any{
		"node": map[string]any{"id": req.GetProxyId()},
		"admin": map[string]any{"address": map[string]any{"socket_address": map[string]any{
			"address": req.GetAdmin().GetAddress(), "port_value": req.GetAdmin().GetPort(),
		}}},
	}, "", "  ")
	return &bootstrapv1.GenerateResponse{Bootstrap: content}, err
}
