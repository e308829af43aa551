package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/wire"
)

// debugged lets the plugins that sockets names pass their calls on to processes that
// their authors debug: the processes that the agent starts are told where those listen.
// sockets is what such a process printed, a JSON object; empty: none is debugged.
func debugged(plugins []supervisor.Plugin, sockets string) ([]supervisor.Plugin, error) {
	if sockets == "" {
		return plugins, nil
	}
	var found map[string]string
	if err := json.Unmarshal([]byte(sockets), &found); err != nil {
		return nil, fmt.Errorf("read %s: want a JSON object of plugins' names and sockets: %w", wire.EnvReattach, err)
	}
	plugins = slices.Clone(plugins)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !filepath.IsAbs(found[name]) {
			return nil, fmt.Errorf("read %s: the socket of plugin %q is %q, which is not an absolute path", wire.EnvReattach, name, found[name])
		}
		at := slices.IndexFunc(plugins, func(p supervisor.Plugin) bool { return p.Name == name })
		if at < 0 {
			at = len(plugins)
			plugins = append(plugins, supervisor.Plugin{Name: name})
		}
		plugins[at].Env = append(slices.Clone(plugins[at].Env), wire.EnvDebugSocket+"="+found[name])
	}
	return plugins, nil
}
