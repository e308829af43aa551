package server

import (
	"context"

	"connectrpc.com/connect"

	hostv1 "github.com/pannier/pannier/host/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/host/internal/supervisor"
)

// pluginService serves pannier.host.v1.PluginService.
type pluginService struct{ *Server }

// ListPlugins lists the plugin processes.
func (s pluginService) ListPlugins(context.Context, *connect.Request[hostv1.ListPluginsRequest]) (*connect.Response[hostv1.ListPluginsResponse], error) {
	return connect.NewResponse(&hostv1.ListPluginsResponse{Plugins: s.shownPlugins()}), nil
}

func (s *Server) shownPlugins() []*hostv1.Plugin {
	var out []*hostv1.Plugin
	for _, p := range s.cfg.Plugins() {
		lastError := p.LastError
		if p.State == supervisor.Unhealthy {
			lastError = p.Message // why, now; LastError is of its last end
		}
		out = append(out, &hostv1.Plugin{
			Name: p.Name, Kind: p.Kind, Version: p.Version, Sha256: p.SHA256, State: string(p.State),
			Pid: int64(p.PID), Generation: p.Generation, StartedAt: timestamp(p.StartedAt), Restarts: int32(p.Restarts),
			Leases: int64(p.Leases), LastError: lastError, NextTryAt: timestamp(p.NextTry),
		})
	}
	return out
}
