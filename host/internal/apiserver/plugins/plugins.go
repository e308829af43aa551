package plugins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/apiserver/asknode"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/internal/errcode"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/frontend"
	"github.com/pannier/pannier/sdk/storage"
)

// Handler serves pannier.host.v1.PluginService and DeviceService.
type Handler struct {
	Plugins Plugins
	// Uses are what of the configuration calls plugins.
	Uses func() []catalog.Use
	// Naming returns the blocks of the configuration, and the registered drivers, that name a plugin.
	Naming    func(plugin string) []string
	Drivers   *drivers.Registry
	Devices   *devices.Registry
	Workloads *workload.Manager
	Nodes     *asknode.Asker
}

// Plugins are the plugin processes of this host (supervisor.Supervisor).
type Plugins interface {
	Status() []supervisor.Status
	Swap(ctx context.Context, name, sha string, grace *time.Duration) (supervisor.Status, error)
	Restart(ctx context.Context, name string, grace *time.Duration) (supervisor.Status, error)
	Canary(ctx context.Context, name string, percent int) (supervisor.Status, error)
	Promote(ctx context.Context, name string, grace *time.Duration) (supervisor.Status, error)
	Rollback(ctx context.Context, name, to string, grace *time.Duration) (supervisor.Status, error)
	Pin(ctx context.Context, name, which string) (supervisor.Status, error)
	Unpin(ctx context.Context, name string) (supervisor.Status, error)
	// Remove ends a plugin whose file is gone.
	Remove(ctx context.Context, name string) error
	RemoveFiles(name string) error
	// Verify tests a file without a swap.
	Verify(ctx context.Context, path string) (supervisor.Verified, error)
	// Log is the path of a plugin's log.
	Log(name string) (string, error)
}

// ListPlugins lists the plugin processes.
func (h *Handler) ListPlugins(ctx context.Context,
	req *hostv1.ListPluginsRequest,
) (*hostv1.ListPluginsResponse, error) {
	if node := req.GetNode(); h.Nodes.IsOther(node) {
		return asknode.Ask(ctx, h.Nodes, req, node, 0, asknode.Clients.ListPlugins)
	}
	return &hostv1.ListPluginsResponse{Plugins: h.Shown()}, nil
}

// SwapPlugin replaces a plugin's processes by the binary in the plugin directory, or gives that a part of the calls.
func (h *Handler) SwapPlugin(ctx context.Context, req *hostv1.SwapPluginRequest) (*hostv1.SwapPluginResponse, error) {
	swap := func(ctx context.Context, name string, grace *time.Duration) (supervisor.Status, error) {
		return h.Plugins.Swap(ctx, name, req.GetSha256(), grace)
	}
	if percent := req.GetCanaryPercent(); percent != 0 {
		if percent < 1 || percent > 99 {
			return nil, call.Invalid("plugin", "canary_percent", "must be 1 to 99, or 0 for a swap")
		}
		if name := req.GetName(); slices.ContainsFunc(h.Plugins.Status(), func(p supervisor.Status) bool {
			return p.Name == name && p.Kind == frontend.Kind
		}) {
			return nil, connect.NewError(connect.CodeFailedPrecondition,
				fmt.Errorf("plugin %q: a front door can have no canary: one process accepts all connections", name))
		}
		swap = func(ctx context.Context, name string, _ *time.Duration) (supervisor.Status, error) {
			return h.Plugins.Canary(ctx, name, int(percent))
		}
	}
	p, err := h.orderWithin(ctx, req, swap)
	return &hostv1.SwapPluginResponse{Plugin: p}, err
}

// RestartPlugin replaces a plugin's process by a new one of the same binary.
func (h *Handler) RestartPlugin(ctx context.Context,
	req *hostv1.RestartPluginRequest,
) (*hostv1.RestartPluginResponse, error) {
	p, err := h.orderWithin(ctx, req, h.Plugins.Restart)
	return &hostv1.RestartPluginResponse{Plugin: p}, err
}

// PromotePlugin lets a plugin's canary serve.
func (h *Handler) PromotePlugin(ctx context.Context,
	req *hostv1.PromotePluginRequest,
) (*hostv1.PromotePluginResponse, error) {
	p, err := h.orderWithin(ctx, req, h.Plugins.Promote)
	return &hostv1.PromotePluginResponse{Plugin: p}, err
}

// RollbackPlugin returns to the binary that served before, or to another one that is kept.
func (h *Handler) RollbackPlugin(ctx context.Context,
	req *hostv1.RollbackPluginRequest,
) (*hostv1.RollbackPluginResponse, error) {
	p, err := h.orderWithin(ctx, req,
		func(ctx context.Context, name string, grace *time.Duration) (supervisor.Status, error) {
			return h.Plugins.Rollback(ctx, name, req.GetTo(), grace)
		})
	return &hostv1.RollbackPluginResponse{Plugin: p}, err
}

// maxGrace is the longest grace that an operator may give.
const maxGrace = time.Hour

// orderWithin is order for a request that bounds the calls of the replaced process.
func (h *Handler) orderWithin(ctx context.Context, req interface {
	GetName() string
	GetGrace() *durationpb.Duration
}, do func(context.Context, string, *time.Duration) (supervisor.Status, error),
) (*hostv1.Plugin, error) {
	var grace *time.Duration
	if g := req.GetGrace(); g != nil {
		d := g.AsDuration()
		if g.CheckValid() != nil || d < 0 || d > maxGrace {
			return nil, call.Invalid("plugin", "grace", fmt.Sprintf("must be from 0s to %s", maxGrace))
		}
		grace = &d
	}
	return h.order(ctx, req.GetName(), func(ctx context.Context, name string) (supervisor.Status, error) {
		return do(ctx, name, grace)
	})
}

// PinPlugin pins a plugin to one copy of its binary.
func (h *Handler) PinPlugin(ctx context.Context, req *hostv1.PinPluginRequest) (*hostv1.PinPluginResponse, error) {
	p, err := h.order(ctx, req.GetName(), func(ctx context.Context, name string) (supervisor.Status, error) {
		return h.Plugins.Pin(ctx, name, req.GetSha256())
	})
	return &hostv1.PinPluginResponse{Plugin: p}, err
}

// UnpinPlugin lets the binary in the plugin directory serve again.
func (h *Handler) UnpinPlugin(ctx context.Context,
	req *hostv1.UnpinPluginRequest,
) (*hostv1.UnpinPluginResponse, error) {
	p, err := h.order(ctx, req.GetName(), h.Plugins.Unpin)
	return &hostv1.UnpinPluginResponse{Plugin: p}, err
}

// RemovePlugin ends a plugin whose file is gone, or removes its files first, which only root and the agent's own user
// may do. It is refused while workloads of this host depend on the plugin: they could not be released; and, without
// force, while the configuration or a registered driver names it.
func (h *Handler) RemovePlugin(ctx context.Context,
	req *hostv1.RemovePluginRequest,
) (*hostv1.RemovePluginResponse, error) {
	name := req.GetName()
	if err := claim.CheckID(name); err != nil {
		return nil, call.Invalid("plugin", "name", err.Error())
	}
	if c := call.CallerOf(ctx); req.GetFiles() && !c.Root {
		return nil, connect.NewError(connect.CodePermissionDenied,
			fmt.Errorf("%s may not have the agent remove files: do it as root, on the agent's own machine", c.Who()))
	}
	if users := h.dependents(name); len(users) > 0 {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf(
			"plugin %q: workloads depend on it: %s: stop them first, or put a file of the plugin back", name,
			strings.Join(users, ", ")))
	}
	if blocks := h.Naming(name); len(blocks) > 0 && !req.GetForce() {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("plugin %q: it is named by %s: take that out and "+
			"run pannier agent reload, or pannier driver deregister, or force it", name, strings.Join(blocks, ", ")))
	}
	if req.GetFiles() {
		if err := h.Plugins.RemoveFiles(name); err != nil {
			return nil, err
		}
	}
	err := h.Plugins.Remove(ctx, name)
	return &hostv1.RemovePluginResponse{}, err
}

// dependents names what of this host's workloads needs a plugin: volumes and services that it alone serves, and its
// devices.
func (h *Handler) dependents(name string) (users []string) {
	all := h.Plugins.Status()
	others := slices.DeleteFunc(slices.Clone(all), func(p supervisor.Status) bool { return p.Name == name })
	consuls := map[string]bool{} // blocks whose services have no other plugin
	for _, u := range h.Uses() {
		if by := u.By(others); u.By(all) != name || by != "" && by != name {
			continue
		}
		if u.Kind == storage.Kind {
			users = append(users, h.Workloads.WorkloadsUsing(u.ID)...)
		} else {
			consuls[u.ID] = true
		}
	}
	for _, w := range h.Workloads.List() {
		if !w.State.Ended() && needsPlugin(w, name, consuls) {
			users = append(users, fmt.Sprintf("workload %q", w.Spec))
		}
	}
	return users
}

func needsPlugin(w workload.Workload, name string, consuls map[string]bool) bool {
	return slices.ContainsFunc(w.Services, func(svc servicesteps.Status) bool { return consuls[svc.Consul] }) ||
		slices.ContainsFunc(w.Devices, func(d devices.Given) bool { return d.Plugin == name })
}

// order carries out an operator's request. If the new process could not take over, the error names the one that serves
// instead.
func (h *Handler) order(ctx context.Context, name string,
	do func(context.Context, string) (supervisor.Status, error),
) (*hostv1.Plugin, error) {
	if err := claim.CheckID(name); err != nil {
		return nil, call.Invalid("plugin", "name", err.Error())
	}
	st, err := do(ctx, name)
	_, coded := errcode.Of(err)
	switch {
	case err == nil:
		return h.shownPlugin(st), nil
	case coded || ctx.Err() != nil:
		return nil, err
	case errors.Is(err, context.Canceled): // canceled, but not by the caller
		return nil, call.ErrStopping
	case st.PID != 0:
		err = fmt.Errorf("%w; callers keep generation %d (version %s)", err, st.Generation, st.Version)
	}
	return nil, connect.NewError(connect.CodeFailedPrecondition, err)
}

// VerifyPlugin tests whether a file could serve. It runs the file as the agent's user, so over the socket only that
// user and root may call it.
func (h *Handler) VerifyPlugin(ctx context.Context,
	req *hostv1.VerifyPluginRequest,
) (*hostv1.VerifyPluginResponse, error) {
	if c := call.CallerOf(ctx); !c.Root {
		return nil, connect.NewError(connect.CodePermissionDenied,
			fmt.Errorf("%s may not have the agent run a file: run it as root, on the agent's own machine", c.Who()))
	}
	path := req.GetPath()
	if !filepath.IsAbs(path) {
		return nil, call.Invalid("plugin", "path", "must be absolute")
	}
	v, err := h.Plugins.Verify(ctx, path)
	_, coded := errcode.Of(err)
	switch {
	case err == nil:
		return &hostv1.VerifyPluginResponse{
			Name: v.Name, Known: v.Known, Kind: v.Kind, Version: v.Version, Sha256: v.SHA256, Healthy: v.Healthy,
			Message: v.Message,
		}, nil
	case coded || ctx.Err() != nil:
		return nil, err
	case errors.Is(err, fs.ErrNotExist):
		return nil, connect.NewError(connect.CodeNotFound, err)
	default:
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
}

// Shown returns all plugins.
func (h *Handler) Shown() []*hostv1.Plugin {
	var out []*hostv1.Plugin
	for _, p := range h.Plugins.Status() {
		out = append(out, h.shownPlugin(p))
	}
	return out
}

func (h *Handler) shownPlugin(p supervisor.Status) *hostv1.Plugin {
	lastError := p.LastError
	if p.State == supervisor.Unhealthy {
		lastError = p.Message // the current reason; LastError is of its last exit
	}
	shown := &hostv1.Plugin{
		Name: p.Name, Kind: p.Kind, Version: p.Version, Sha256: p.SHA256, State: string(p.State),
		Pid: int64(p.PID), Generation: p.Generation, StartedAt: call.Time(p.StartedAt), Restarts: int32(p.Restarts),
		Leases: int64(p.Users), LastError: lastError, NextTryAt: call.Time(p.NextTry),
		Draining: int32(p.Draining), Pinned: p.Pinned, LastGood: p.LastGood, Refused: maps.Clone(p.Refused),
		FileProblem: p.FileProblem, ConfigProblem: p.ConfigProblem, DuplicateOf: p.DuplicateOf,
		Calls: int64(p.Calls), FailedCalls: int64(p.FailedCalls), Degraded: p.Degraded,
		DebuggedAt: p.DebuggedAt, Mend: p.Mend,
	}
	all, uses := h.Plugins.Status(), h.Uses()
	for _, u := range uses {
		if u.Kind == p.Kind && u.By(all) == p.Name && !slices.Contains(shown.Serves, u.Of) {
			shown.Serves = append(shown.Serves, u.Of)
		}
	}
	shown.Unused, shown.UnusedDrivers = catalog.Unused(p, all, uses), h.Drivers.Unused(p.Name)
	for _, w := range p.Swaps {
		shown.Swaps = append(shown.Swaps, &hostv1.PluginSwap{
			At: call.Time(w.At), From: shownSide(w.From), To: shownSide(w.To), Took: durationpb.New(w.Took),
			Carried: int64(w.Carried), Rollback: w.Rollback, Error: w.Error, Why: w.Why, Restart: w.Restart,
			CanaryPercent: int32(w.Canary),
		})
	}
	if c := p.Canary; c != nil {
		shown.Canary = &hostv1.PluginCanary{
			Generation: &hostv1.PluginGeneration{Generation: c.Generation, Version: c.Version, Sha256: c.SHA256},
			Pid:        int64(c.PID), StartedAt: call.Time(c.StartedAt), Percent: int32(c.Percent), Leases: int64(c.Users),
			Calls: int64(c.Calls), FailedCalls: int64(c.FailedCalls),
			ServingCalls: int64(c.Serving.Calls), ServingFailedCalls: int64(c.Serving.FailedCalls),
		}
	}
	for _, v := range p.Versions {
		shown.Versions = append(shown.Versions, &hostv1.PluginVersion{
			Sha256: v.SHA256, Version: v.Version, ServedFrom: call.Time(v.From), ServedUntil: call.Time(v.Until),
			Kept: v.Kept, Refused: v.Refused, File: v.File, Waits: v.Waits,
		})
	}
	return shown
}

func shownSide(s supervisor.Side) *hostv1.PluginGeneration {
	return &hostv1.PluginGeneration{
		Generation: s.Generation, Version: s.Version, Sha256: s.SHA256,
		Calls: int64(s.Calls), FailedCalls: int64(s.FailedCalls),
	}
}

// PluginLog streams what a plugin's processes printed.
func (h *Handler) PluginLog(ctx context.Context, req *hostv1.PluginLogRequest,
	stream *connect.ServerStream[hostv1.PluginLogResponse],
) error {
	name := req.GetName()
	if err := claim.CheckID(name); err != nil {
		return call.Invalid("plugin", "name", err.Error())
	}
	path, err := h.Plugins.Log(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // not started yet
	}
	if err != nil {
		return err
	}
	return call.SendLog(ctx, fmt.Sprintf("plugin %q", name), path, req, stream,
		func(line string) *hostv1.PluginLogResponse { return &hostv1.PluginLogResponse{Line: line} })
}
