package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/hostservices"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/sdk/wire"
)

func (a *agent) openPlugins(ctx context.Context) error {
	a.hosting = hostservices.New(hostservices.Config{Journal: a.journal, Log: a.log.Named("plugin")})
	a.closers.add(a.hosting.Close)
	cfg := supervisor.Config{
		PluginDir: a.cfg.PluginDir, DataDir: a.cfg.DataDir, Logger: a.log.Named("plugin"),
		OnEvent: a.pluginEvent, OnPluginEvent: func(e supervisor.PluginEvent) {
			a.catalog.Event(
				e)
		}, DieWithHost: a.cfg.Dev, StopPlugins: a.stopPlugins.Load(),
		Probe: a.probe, Services: a.hosting, Signing: a.cfg.PluginSigning,
	}
	for _, p := range a.cfg.Plugins {
		window := p.RollbackWindow
		if window == 0 {
			window = -1 // 0 is the supervisor's default
		}
		cfg.Plugins = append(cfg.Plugins, supervisor.Plugin{
			Name: p.Name, Args: p.Args, User: p.User, Group: p.Group, Limits: supervisor.Limits(p.Limits),
			Checksum: p.Checksum, Version: p.Version, Config: p.Config, Where: p.Where,
			RollbackWindow: window,
		})
	}
	var err error
	if cfg.Plugins, err = debugged(cfg.Plugins, os.Getenv(wire.EnvReattach)); err != nil {
		return err
	}
	a.plugins = supervisor.New(cfg)
	a.catalog = catalog.New(a.plugins)
	a.catalog.OnEvent(catalog.EveryKind, a.publish)
	if err := a.plugins.Open(ctx); err != nil {
		return err
	}
	a.closers.add(a.plugins.Close)
	if needs := a.needs(); len(needs) > 0 && len(a.plugins.Status()) == 0 {
		return fmt.Errorf("there is no plugin in %s, and %s cannot work without: install the plugins there, or set plugin_dir",
			a.cfg.PluginDir, needs[0].what)
	}
	return nil
}

// need is a part of the configuration that cannot work without a plugin of a kind.
type need struct{ what, kind string }

// needs returns what the configuration needs. Workloads may need more.
func (a *agent) needs() (all []need) {
	for _, d := range a.cfg.Drivers {
		all = append(all, need{fmt.Sprintf("csi_driver %q", d.ID), storage.Kind})
	}
	for _, c := range a.cfg.Consuls {
		what := fmt.Sprintf("consul %q", c.Name)
		all = append(all, need{what, registration.Kind})
		if c.AuthMethod != "" {
			all = append(all, need{what, identity.Kind})
		}
	}
	return all
}

// pluginHealth says why the host cannot reach its drivers, and which configured part has no plugin. A plugin that has
// come up once and fails later is left out, unless it is the storage plugin: its status and the events say so.
func (a *agent) pluginHealth() []string {
	plugins := a.plugins.Status()
	reasons := a.storageHealth(slices.Clone(plugins))
	for _, name := range a.plugins.Missing() {
		reasons = append(reasons, fmt.Sprintf("plugin %q is configured, and %s has no file of it", name, a.cfg.PluginDir))
	}
	for _, n := range a.needs() {
		if n.kind != storage.Kind &&
			!slices.ContainsFunc(plugins, func(p supervisor.Status) bool { return p.Kind == n.kind }) {
			reasons = append(reasons, fmt.Sprintf("%s needs a plugin of kind %s, and none in %s has come up "+
				"(see: pannier plugin status)", n.what, n.kind, a.cfg.PluginDir))
		}
	}
	return reasons
}

// storageHealth says why the host cannot reach its drivers.
func (a *agent) storageHealth(plugins []supervisor.Status) (reasons []string) {
	if slices.ContainsFunc(plugins, isDefault) { // no other is used
		plugins = slices.DeleteFunc(plugins, func(p supervisor.Status) bool { return !isDefault(p) })
	}
	for _, p := range plugins {
		switch {
		case p.State != supervisor.Running:
			reasons = append(reasons, fmt.Sprintf("plugin %q is %s: %s", p.Name, p.State, p.LastError))
		case p.Kind == storage.Kind:
			return nil
		}
	}
	if len(reasons) == 0 {
		reasons = append(reasons, fmt.Sprintf("there is no storage plugin in %s", a.cfg.PluginDir))
	}
	return reasons
}

// isDefault reports whether a plugin is the default storage plugin. While that is configured, no other storage plugin
// is used.
func isDefault(p supervisor.Status) bool { return p.Name == catalog.DefaultStorage }

func (a *agent) pluginEvent(e supervisor.Event) {
	a.events.Publish(events.Event{
		Time: e.Time, Topic: events.TopicPlugin, Type: string(e.Type), Subject: e.Status.Name,
		Message: e.Message,
	})
}

// publish publishes a plugin's own events. What the host itself reports of a plugin has no "event" among its details.
func (a *agent) publish(e supervisor.PluginEvent) {
	if e.Lost > 0 {
		lost := strconv.FormatUint(e.Lost, 10)
		a.events.Publish(events.Event{
			Topic: events.TopicPlugin, Type: "events-dropped", Subject: e.Plugin,
			Message: "there were more events than the plugin keeps, the oldest were dropped",
			Details: map[string]string{"dropped": lost, "generation": strconv.FormatUint(e.Generation, 10)},
		})
	}
	details := map[string]string{}
	maps.Copy(details, e.Details)
	details["event"] = e.ID()
	if e.Subject != "" {
		details["subject"] = e.Subject
	}
	a.events.Publish(events.Event{
		Time: e.Time, Topic: events.TopicPlugin, Type: e.Type, Subject: e.Plugin, Message: e.Message, Details: details,
	})
}

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
			return nil, fmt.Errorf("read %s: the socket of plugin %q is %q, which is not an absolute path", wire.EnvReattach,
				name, found[name])
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
