package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// The generations of the fake's plugins.
var (
	oldSum, newSum, badSum = sum("0123456789ab"), sum("abcdef012345"), sum("abcdef999999")
)

func sum(begin string) string { return begin + strings.Repeat("0", 64-len(begin)) }

// plugin returns a plugin after a swap, a refused binary and a rollback.
func plugin() *hostv1.Plugin {
	at := timestamppb.New(time.Unix(1e9, 0))
	first := &hostv1.PluginGeneration{Generation: 1, Version: "1.0.0", Sha256: oldSum}
	second := &hostv1.PluginGeneration{Generation: 2, Version: "1.1.0", Sha256: newSum}
	return &hostv1.Plugin{
		Name: "csi-bridge", Kind: "storage", Version: "1.0.0", Sha256: oldSum, State: "running", Pid: 41, StartedAt: ago(
			5 * time.Minute),
		Generation: 4, Leases: 3, Calls: 800, FailedCalls: 2, Draining: 1, LastGood: newSum,
		Refused: map[string]string{badSum: "handshake:\x1b[2J no"},
		Swaps: []*hostv1.PluginSwap{
			{At: at, From: first, To: second, Took: durationpb.New(42 * time.Millisecond), Carried: 2},
			{
				At: at, From: second, To: &hostv1.PluginGeneration{Sha256: badSum}, Took: durationpb.New(2 * time.Second),
				Error: "handshake: no",
			},
			{
				At: at, From: &hostv1.PluginGeneration{Generation: 2, Version: "1.1.0", Sha256: newSum, Calls: 12, FailedCalls: 3},
				To:   &hostv1.PluginGeneration{Generation: 4, Version: "1.0.0", Sha256: oldSum},
				Took: durationpb.New(41 * time.Millisecond), Carried: 1, Rollback: true,
				Why: "3 of the last 3 calls of Attach failed",
			},
		},
		Versions: []*hostv1.PluginVersion{
			{Sha256: newSum, Version: "1.1.0", ServedFrom: at, ServedUntil: at, Kept: true},
			{Sha256: oldSum, Version: "1.0.0", ServedFrom: at, Kept: true, File: "/p/csi-bridge"},
			{Sha256: badSum, File: "/p/csi-bridge_v1.2.0", Version: "1.2.0", Refused: "handshake:\x1b[2J no"},
			{File: "/p/csi-bridge_v0.9.0", Version: "0.9.0"},
		},
	}
}

// down returns a plugin that fails to start.
func down() *hostv1.Plugin {
	return &hostv1.Plugin{
		Name: "sids", State: "backing-off", FileProblem: "/p/sids is not executable", Restarts: 2, LastError: "exit status 1", StartedAt: ago(
			time.Minute), NextTryAt: timestamppb.New(time.Now().Add(50*time.Second + 500*time.Millisecond)),
	}
}

// withCanary returns a plugin with a canary, after two others.
func withCanary() *hostv1.Plugin {
	p := plugin()
	p.Name, p.Canary, p.StartedAt = "tried", tried(10), ago(6*time.Minute)
	p.Swaps = p.Swaps[:2]
	p.Swaps[0].CanaryPercent, p.Swaps[1].CanaryPercent = 20, 5
	return p
}

func (f *fake) ListPlugins(*hostv1.ListPluginsRequest) (*hostv1.ListPluginsResponse, error) {
	return &hostv1.ListPluginsResponse{Plugins: []*hostv1.Plugin{plugin(), down(), withCanary()}}, nil
}

// orderedPlugin returns the plugin with a name, or the error that the name stands for.
func orderedPlugin(name string) (*hostv1.Plugin, error) {
	switch name {
	case "csi-bridge":
		return plugin(), nil
	case "sids":
		return down(), nil
	case "held":
		return nil, connect.NewError(connect.CodeFailedPrecondition,
			fmt.Errorf("plugin %q: handshake: no; callers keep generation 4 (version 1.0.0)", name))
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("no such plugin: %q", name))
}

func (f *fake) SwapPlugin(r *hostv1.SwapPluginRequest) (*hostv1.SwapPluginResponse, error) {
	p, err := orderedPlugin(r.GetName())
	if percent := r.GetCanaryPercent(); percent != 0 {
		p.Canary = tried(percent)
	}
	return &hostv1.SwapPluginResponse{Plugin: p}, err
}

// tried returns a canary.
func tried(percent int32) *hostv1.PluginCanary {
	return &hostv1.PluginCanary{
		Generation: &hostv1.PluginGeneration{Generation: 5, Version: "1.3.0", Sha256: newSum}, Pid: 43, Percent: percent,
		StartedAt: ago(2 * time.Minute), Calls: 40, FailedCalls: 1, ServingCalls: 360,
	}
}

func (f *fake) PromotePlugin(r *hostv1.PromotePluginRequest) (*hostv1.PromotePluginResponse, error) {
	p, err := orderedPlugin(r.GetName())
	return &hostv1.PromotePluginResponse{Plugin: p}, err
}

func (f *fake) RestartPlugin(r *hostv1.RestartPluginRequest) (*hostv1.RestartPluginResponse, error) {
	p, err := orderedPlugin(r.GetName())
	if r.GetGrace() != nil {
		p.Swaps[2].Restart, p.Swaps[2].Rollback, p.Swaps[2].Took = true, false, r.GetGrace()
	}
	return &hostv1.RestartPluginResponse{Plugin: p}, err
}

func (f *fake) RollbackPlugin(r *hostv1.RollbackPluginRequest) (*hostv1.RollbackPluginResponse, error) {
	p, err := orderedPlugin(r.GetName())
	if to := r.GetTo(); to != "" {
		p.Version = to
	}
	return &hostv1.RollbackPluginResponse{Plugin: p}, err
}

func (f *fake) PinPlugin(r *hostv1.PinPluginRequest) (*hostv1.PinPluginResponse, error) {
	p, err := orderedPlugin(r.GetName())
	if err != nil {
		return nil, err
	}
	p.Pinned = r.GetSha256()
	if p.Pinned == "" {
		p.Pinned = p.Sha256
		p.Versions[2].Waits, p.Versions[2].Refused = true, ""
	}
	return &hostv1.PinPluginResponse{Plugin: p}, nil
}

func (f *fake) UnpinPlugin(r *hostv1.UnpinPluginRequest) (*hostv1.UnpinPluginResponse, error) {
	p, err := orderedPlugin(r.GetName())
	return &hostv1.UnpinPluginResponse{Plugin: p}, err
}

func (f *fake) RemovePlugin(r *hostv1.RemovePluginRequest) (*hostv1.RemovePluginResponse, error) {
	if r.GetName() == "csi-bridge" {
		return nil, connect.NewError(connect.CodeFailedPrecondition,
			fmt.Errorf("plugin %q: workloads depend on it: dev/db: stop them first", r.GetName()))
	}
	_, err := orderedPlugin(r.GetName())
	return &hostv1.RemovePluginResponse{}, err
}

func (f *fake) VerifyPlugin(r *hostv1.VerifyPluginRequest) (*hostv1.VerifyPluginResponse, error) {
	path := r.GetPath()
	switch {
	case !strings.HasPrefix(path, "/"):
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%s is not absolute", path))
	case strings.HasSuffix(path, "bad"):
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("verify %s: handshake: no", path))
	}
	unwell := strings.HasSuffix(path, "unwell")
	v := &hostv1.VerifyPluginResponse{
		Name: "csi-bridge", Known: !unwell, Kind: "storage.v1", Version: "1.2.0",
		Sha256: newSum, Healthy: !unwell,
	}
	if unwell {
		v.Message = "no driver answers"
	}
	return v, nil
}

func (f *fake) PluginLog(ctx context.Context, r *hostv1.PluginLogRequest,
	s *connect.ServerStream[hostv1.PluginLogResponse],
) error {
	if _, err := orderedPlugin(r.GetName()); err != nil {
		return err
	}
	lines := []string{
		"plain\x1b[2J",
		`{"@level":"warn","@message":"slow","@module":"serve","@timestamp":"2026-11-20T08:00:00.000000Z","took":1234567}`,
		`{"half":`,
	}
	for _, line := range lines[:min(int(r.GetRecent()), len(lines))] {
		if err := s.Send(&hostv1.PluginLogResponse{Line: line}); err != nil {
			return err
		}
	}
	return nil
}
