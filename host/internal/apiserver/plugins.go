package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// pluginService serves pannier.host.v1.PluginService.
type pluginService struct{ *Server }

// ListPlugins lists the plugin processes.
func (s pluginService) ListPlugins(context.Context, *connect.Request[hostv1.ListPluginsRequest]) (*connect.Response[hostv1.ListPluginsResponse], error) {
	return connect.NewResponse(&hostv1.ListPluginsResponse{Plugins: s.shownPlugins()}), nil
}

// SwapPlugin lets what the plugin directory has take over.
func (s pluginService) SwapPlugin(ctx context.Context, req *connect.Request[hostv1.SwapPluginRequest]) (*connect.Response[hostv1.SwapPluginResponse], error) {
	p, err := s.order(ctx, req.Msg.GetName(), s.cfg.Plugins.Swap)
	return connect.NewResponse(&hostv1.SwapPluginResponse{Plugin: p}), err
}

// RollbackPlugin brings back what served before.
func (s pluginService) RollbackPlugin(ctx context.Context, req *connect.Request[hostv1.RollbackPluginRequest]) (*connect.Response[hostv1.RollbackPluginResponse], error) {
	p, err := s.order(ctx, req.Msg.GetName(), s.cfg.Plugins.Rollback)
	return connect.NewResponse(&hostv1.RollbackPluginResponse{Plugin: p}), err
}

// sha256Form is a sum as the supervisor has it.
var sha256Form = regexp.MustCompile(`^[0-9a-f]{64}$`)

// PinPlugin keeps a plugin at one copy.
func (s pluginService) PinPlugin(ctx context.Context, req *connect.Request[hostv1.PinPluginRequest]) (*connect.Response[hostv1.PinPluginResponse], error) {
	sha := req.Msg.GetSha256()
	if sha != "" && !sha256Form.MatchString(sha) { // it becomes part of a path
		return nil, invalid("plugin", "sha256", "must be 64 digits of 0-9 and a-f")
	}
	p, err := s.order(ctx, req.Msg.GetName(), func(ctx context.Context, name string) (supervisor.Status, error) {
		return s.cfg.Plugins.Pin(ctx, name, sha)
	})
	return connect.NewResponse(&hostv1.PinPluginResponse{Plugin: p}), err
}

// UnpinPlugin lets what is in the plugin directory serve again.
func (s pluginService) UnpinPlugin(ctx context.Context, req *connect.Request[hostv1.UnpinPluginRequest]) (*connect.Response[hostv1.UnpinPluginResponse], error) {
	p, err := s.order(ctx, req.Msg.GetName(), s.cfg.Plugins.Unpin)
	return connect.NewResponse(&hostv1.UnpinPluginResponse{Plugin: p}), err
}

// order has an operator's wish carried out. The error of a process that could not take
// over says who serves instead.
func (s *Server) order(ctx context.Context, name string, do func(context.Context, string) (supervisor.Status, error)) (*hostv1.Plugin, error) {
	if err := claim.CheckID(name); err != nil {
		return nil, invalid("plugin", "name", err.Error())
	}
	st, err := do(ctx, name)
	switch {
	case err == nil:
		return shownPlugin(st), nil
	case isPluginError(err) || ctx.Err() != nil:
		return nil, err
	case errors.Is(err, context.Canceled): // not by the caller
		return nil, errStopping
	default:
		return nil, connect.NewError(connect.CodeFailedPrecondition,
			fmt.Errorf("%w; callers keep generation %d (version %s)", err, st.Generation, st.Version))
	}
}

// isPluginError says whether an error of the supervisor has a code of its own.
func isPluginError(err error) bool {
	return errors.Is(err, supervisor.ErrUnknown) || errors.Is(err, supervisor.ErrNoSwap) || errors.Is(err, supervisor.ErrNoCopy) ||
		errors.Is(err, supervisor.ErrPinned) || errors.Is(err, supervisor.ErrClosed)
}

// VerifyPlugin tries whether a file could serve. It runs what the caller names as the
// agent's own user, so whoever is not that user, or root, may not ask for it.
func (s pluginService) VerifyPlugin(ctx context.Context, req *connect.Request[hostv1.VerifyPluginRequest]) (*connect.Response[hostv1.VerifyPluginResponse], error) {
	if c := callerOf(ctx); !c.isRoot(s.access) {
		return nil, connect.NewError(connect.CodePermissionDenied,
			fmt.Errorf("%s may not have the agent run a file: run it as root, on the agent's own machine", c.who()))
	}
	path := req.Msg.GetPath()
	if !filepath.IsAbs(path) {
		return nil, invalid("plugin", "path", "must be absolute")
	}
	v, err := s.cfg.Plugins.Verify(ctx, path)
	switch {
	case err == nil:
		return connect.NewResponse(&hostv1.VerifyPluginResponse{
			Name: v.Name, Known: v.Known, Kind: v.Kind, Version: v.Version, Sha256: v.SHA256, Healthy: v.Healthy, Message: v.Message,
		}), nil
	case isPluginError(err) || ctx.Err() != nil:
		return nil, err
	case errors.Is(err, fs.ErrNotExist):
		return nil, connect.NewError(connect.CodeNotFound, err)
	default:
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
}

func (s *Server) shownPlugins() []*hostv1.Plugin {
	var out []*hostv1.Plugin
	for _, p := range s.cfg.Plugins.Status() {
		out = append(out, shownPlugin(p))
	}
	return out
}

func shownPlugin(p supervisor.Status) *hostv1.Plugin {
	lastError := p.LastError
	if p.State == supervisor.Unhealthy {
		lastError = p.Message // why, now; LastError is of its last end
	}
	shown := &hostv1.Plugin{
		Name: p.Name, Kind: p.Kind, Version: p.Version, Sha256: p.SHA256, State: string(p.State),
		Pid: int64(p.PID), Generation: p.Generation, StartedAt: timestamp(p.StartedAt), Restarts: int32(p.Restarts),
		Leases: int64(p.Leases), LastError: lastError, NextTryAt: timestamp(p.NextTry),
		Draining: int32(p.Draining), Pinned: p.Pinned, LastGood: p.LastGood, Refused: maps.Clone(p.Refused),
	}
	for _, w := range p.Swaps {
		shown.Swaps = append(shown.Swaps, &hostv1.PluginSwap{
			At: timestamp(w.At), From: shownSide(w.From), To: shownSide(w.To), Took: durationpb.New(w.Took),
			Carried: int64(w.Carried), Rollback: w.Rollback, Error: w.Error,
		})
	}
	return shown
}

func shownSide(s supervisor.Side) *hostv1.PluginGeneration {
	return &hostv1.PluginGeneration{Generation: s.Generation, Version: s.Version, Sha256: s.SHA256}
}
