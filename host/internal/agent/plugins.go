package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/frontdoors"
	"github.com/pannier/pannier/host/internal/pluginhost/hostservices"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/tracing"
	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/sdk/wire"
)

func (a *agent) openPlugins(ctx context.Context) error {
	a.doors = frontdoors.New(frontdoors.Config{
		Node: a.cfg.Name, ReadSecret: config.ReadSecret, Log: a.log.Named("plugin"),
	})
	a.hosting = hostservices.New(hostservices.Config{
		Journal: a.journal, API: a.doors.API, Spans: a.traces.Record, Log: a.log.Named("plugin"), Door: a.sockets.Door,
		Full: func(plugin, message string) {
			a.events.Publish(events.Event{Topic: events.TopicPlugin, Type: "state-full", Subject: plugin, Message: message})
		},
	})
	a.closers.add(a.hosting.Close)
	a.openDoors(a.cfg)
	cfg := supervisor.Config{
		PluginDir: a.cfg.PluginDir, DataDir: a.cfg.DataDir, Logger: a.log.Named("plugin"),
		OnEvent: func(e supervisor.Event) {
			a.events.Publish(events.Event{
				Time: e.Time, Topic: events.TopicPlugin, Type: string(e.Type), Subject: e.Status.Name, Message: e.Message,
			})
		},
		OnPluginEvent: a.publish,
		DieWithHost:   a.cfg.Dev, StopPlugins: a.stopPlugins.Load(), Confirmed: a.confirmed,
		Probe: a.probe, Services: a.hosting, Signing: a.cfg.PluginSigning, HostIP: hostIP(a.cfg),
	}
	if a.traces != nil {
		cfg.Dial = func(plugin string, generation uint64) []grpc.DialOption {
			return a.traces.Client(tracing.Plugin.String(plugin), tracing.Generation.Int64(int64(generation))) //nolint:gosec // it counts starts
		}
	}
	var err error
	if cfg.Plugins, err = a.pluginsOf(a.cfg); err != nil {
		return err
	}
	a.plugins = supervisor.New(cfg)
	a.catalog = catalog.New(a.plugins)
	if err := a.plugins.Open(ctx); err != nil {
		return err
	}
	a.closers.add(a.plugins.Close)
	a.closers.loop(ctx, func(ctx context.Context) { a.doors.Run(ctx, a.plugins) })
	if uses := a.uses(); len(uses) > 0 && len(a.plugins.Status()) == 0 {
		return fmt.Errorf("there is no plugin in %s, and %s cannot work without: install the plugins there, or set plugin_dir",
			a.cfg.PluginDir, uses[0].Of)
	}
	a.devices = devices.New(a.catalog, a.events, a.log.Named("devices"))
	a.closers.loop(ctx, a.devices.Run)
	return nil
}

// pluginsOf returns the plugins that run with a configuration.
func (a *agent) pluginsOf(cfg *config.Agent) ([]supervisor.Plugin, error) {
	return debugged(named(configured(cfg), cfg), a.cfg.DataDir)
}

// configured returns the plugins of a configuration.
func configured(cfg *config.Agent) (all []supervisor.Plugin) {
	for _, p := range cfg.Plugins {
		window := p.RollbackWindow
		if window == 0 {
			window = -1 // 0 is the supervisor's default
		}
		all = append(all, supervisor.Plugin{
			Name: p.Name, Args: p.Args, Env: variables(p.Env), User: p.User, Group: p.Group, Limits: p.Limits,
			Checksum: p.Checksum, Version: p.Version, Config: p.Config, Where: p.Where,
			RollbackWindow: window, KeepVersions: p.KeepVersions, Door: p.Frontend != nil, Listen: sockets(p.Frontend),
		})
	}
	return all
}

// named adds the plugins that blocks name which have none of their own: what is wrong with them shows, too.
func named(plugins []supervisor.Plugin, cfg *config.Agent) []supervisor.Plugin {
	for _, u := range slices.Concat(driverUses(cfg), consulUses(cfg)) {
		is := func(p supervisor.Plugin) bool { return p.Name == u.Plugin }
		if u.Plugin != "" && !slices.ContainsFunc(plugins, is) {
			plugins = append(plugins, supervisor.Plugin{Name: u.Plugin})
		}
	}
	return plugins
}

// naming returns what names a plugin: blocks of the configuration, and drivers that were registered at run time.
func (a *agent) naming(plugin string) (all []string) {
	for _, p := range a.blocks.Load().Plugins {
		if p.Name == plugin {
			all = append(all, fmt.Sprintf("plugin %q", plugin))
		}
	}
	for _, u := range a.uses() {
		if u.Plugin == plugin && !u.Brought && !slices.Contains(all, u.Of) {
			all = append(all, u.Of)
		}
	}
	return all
}

// variables returns an environment as KEY=value, sorted.
func variables(env map[string]string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all = append(all, name+"="+env[name])
	}
	return all
}

// hostIP is the address at which other hosts reach this one, or loopback where none is configured.
func hostIP(cfg *config.Agent) string {
	if cfg.AdvertiseAddr != "" {
		return cfg.AdvertiseAddr
	}
	if ip, err := netip.ParseAddr(cfg.BindAddr); err == nil && !ip.IsUnspecified() {
		return cfg.BindAddr
	}
	return "127.0.0.1"
}

// openDoors sets what front doors may do, and how much the host keeps for a plugin.
func (a *agent) openDoors(cfg *config.Agent) {
	access, limits := map[string]frontdoors.Access{}, map[string]int64{}
	for _, p := range cfg.Plugins {
		limits[p.Name] = p.StateLimit
		if p.Frontend != nil && p.Frontend.API != nil {
			access[p.Name] = frontdoors.Access(*p.Frontend.API)
		}
	}
	a.doors.Allow(access)
	a.hosting.LimitStates(limits)
}

// sockets returns the listening sockets of a front door.
func sockets(f *config.Frontend) (all []supervisor.Socket) {
	for _, s := range f.Listens() {
		all = append(all, supervisor.Socket(s))
	}
	return all
}

// uses returns what of the configuration calls plugins, and the drivers that were registered at run time or that
// plugins bring.
func (a *agent) uses() (all []catalog.Use) {
	all = slices.Concat(driverUses(a.blocks.Load()), consulUses(a.cfg))
	if a.drivers != nil {
		for _, d := range a.drivers.List() {
			switch d.Source {
			case drivers.SourceRegistered:
				all = append(all, driverUse(d.Spec))
			case drivers.SourcePlugin:
				u := driverUse(d.Spec)
				u.Of, u.Brought = fmt.Sprintf("driver %q", d.ID), true
				all = append(all, u)
			}
		}
	}
	return all
}

func driverUses(cfg *config.Agent) (all []catalog.Use) {
	for _, d := range declared(cfg) {
		if !d.Apart {
			all = append(all, driverUse(d))
		}
	}
	return all
}

func consulUses(cfg *config.Agent) (all []catalog.Use) {
	for _, c := range cfg.Consuls {
		if c.IdentityOnly {
			all = append(all, identityUse(c))
			continue
		}
		all = append(all,
			catalog.Use{Of: c.Block(), ID: c.Name, Kind: registration.Kind, Plugin: c.RegistrationPlugin},
			identityUse(c),
			catalog.Use{Of: c.Block(), ID: c.Name, Kind: bootstrap.Kind, Plugin: c.BootstrapPlugin, Optional: true})
	}
	return all
}

// identityUse is the use of the identity plugin. Without an auth method, only services in the mesh need it.
func identityUse(c config.Consul) catalog.Use {
	return catalog.Use{
		Of: c.Block(), ID: c.Name, Kind: identity.Kind, Plugin: c.IdentityPlugin, Optional: !c.WantsJWT(),
	}
}

// served fails where it is certain that no plugin will do one of the steps of a service.
func (a *agent) served(s *service.Service) error {
	var issuers []string
	for _, c := range a.cfg.Consuls {
		if c.IdentityOnly {
			issuers = append(issuers, c.Name)
		}
	}
	if s.IdentityOnly && !slices.Contains(issuers, s.Consul) {
		known := "it has none"
		if len(issuers) > 0 {
			known = "it has " + strings.Join(issuers, ", ")
		}
		return fmt.Errorf("%w %q: the agent has no such identity block, %s: write `identity %q {}` into its configuration and "+
			"restart it, or name another issuer", errUnknownIssuer, s.Consul, known, s.Consul)
	}
	all := a.plugins.Status()
	for _, u := range a.uses() {
		needed := map[string]bool{
			registration.Kind: !s.IdentityOnly, identity.Kind: s.Identified(), bootstrap.Kind: s.Proxied(),
		}
		if u.ID != s.Consul || !needed[u.Kind] {
			continue
		}
		if err := u.Check(all); err != nil {
			return err
		}
	}
	return nil
}

// errUnknownIssuer means that the agent has no identity block of that name.
var errUnknownIssuer = errcode.FailedPrecondition.New("unknown issuer")

func driverUse(d drivers.Spec) catalog.Use {
	return catalog.Use{Of: fmt.Sprintf("csi_driver %q", d.ID), ID: d.ID, Kind: storage.Kind, Plugin: d.Plugin}
}

// pluginHealth names the part of the configuration that no plugin serves. A plugin that has come up once and fails
// later is left out, unless drivers are reached through it: its status and the events say so.
func (a *agent) pluginHealth() (reasons []string) {
	plugins := a.plugins.Status()
	for _, p := range plugins {
		if p.Missing {
			reasons = append(reasons, fmt.Sprintf("plugin %q is configured, and %s has no file of it", p.Name, a.cfg.PluginDir))
		}
	}
	for _, u := range a.uses() {
		if reason := unserved(u, plugins); reason != "" && !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

// unserved explains why no plugin serves a use now; empty: one does, or it can be done without.
func unserved(u catalog.Use, plugins []supervisor.Status) string {
	if u.Optional {
		return ""
	}
	if err := u.Check(plugins); err != nil {
		return err.Error()
	}
	by := slices.IndexFunc(plugins, func(p supervisor.Status) bool { return p.Name == u.By(plugins) })
	if by < 0 {
		return fmt.Sprintf("%s needs a plugin of kind %s, and none has come up yet (see: pannier plugin list)", u.Of, u.Kind)
	}
	if p := plugins[by]; p.Kind == "" || u.Kind == storage.Kind && p.State != supervisor.Running {
		return strings.TrimSuffix(fmt.Sprintf("plugin %q is %s: %s", p.Name, p.State, p.LastError), ": ")
	}
	return ""
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

// reattachFile, in the data directory, is read at each reload in place of PANNIER_REATTACH_PLUGINS.
const reattachFile = "reattach.json"

// address is where a debugged process listens: the path of a socket, or go-plugin's ReattachConfig.
type address string

// UnmarshalJSON implements json.Unmarshaler.
func (a *address) UnmarshalJSON(text []byte) error {
	var reattach struct{ Addr struct{ String string } }
	if json.Unmarshal(text, &reattach) == nil {
		*a = address(reattach.Addr.String)
		return nil
	}
	return json.Unmarshal(text, (*string)(a))
}

// debugged lets the plugins that the file names, or else PANNIER_REATTACH_PLUGINS, pass their calls on to processes
// that their authors debug: the processes that the agent starts are told where those listen. Both have a JSON object,
// as such a process prints it, or as Terraform's TF_REATTACH_PROVIDERS.
func debugged(plugins []supervisor.Plugin, dataDir string) ([]supervisor.Plugin, error) {
	from := filepath.Join(dataDir, reattachFile)
	text, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		from, text, err = wire.EnvReattach, []byte(os.Getenv(wire.EnvReattach)), nil
	}
	var found map[string]address
	if err == nil && len(text) > 0 {
		err = json.Unmarshal(text, &found)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: want a JSON object of plugins' names and sockets: %w", from, err)
	}
	plugins = slices.Clone(plugins)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !filepath.IsAbs(string(found[name])) {
			return nil, fmt.Errorf("read %s: the socket of plugin %q is %q, which is not an absolute path", from, name, found[name])
		}
		at := slices.IndexFunc(plugins, func(p supervisor.Plugin) bool { return p.Name == name })
		if at < 0 {
			at = len(plugins)
			plugins = append(plugins, supervisor.Plugin{Name: name})
		}
		plugins[at].Env = append(slices.Clone(plugins[at].Env), wire.EnvDebugSocket+"="+string(found[name]))
	}
	return plugins, nil
}

const (
	// driversTimeout bounds the question which drivers a plugin brings.
	driversTimeout = 10 * time.Second
	// driversPause is the pause before a plugin that failed to answer is asked again.
	driversPause = 5 * time.Second
)

// followBrought asks each process of a storage plugin that serves which drivers it brings, and forgets those of a
// plugin that was removed.
func (a *agent) followBrought(ctx context.Context) {
	asked, seen := map[string]uint64{}, map[string]uint64{}
	for ctx.Err() == nil {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if !maps.Equal(asked, seen) {
			wait, cancel = context.WithTimeout(ctx, driversPause)
		}
		serving, err := a.catalog.AwaitStorage(wait, seen)
		over := err != nil && wait.Err() == nil
		cancel()
		if over {
			return // the plugins are closed
		}
		for name := range asked {
			if _, here := serving[name]; !here {
				a.bring(ctx, name, nil)
				delete(asked, name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(serving)) {
			if generation := serving[name]; asked[name] != generation && a.askDrivers(ctx, name) {
				asked[name] = generation
			}
		}
		seen = serving
	}
}

// askDrivers asks a plugin which drivers it brings.
func (a *agent) askDrivers(ctx context.Context, plugin string) (answered bool) {
	ctx, cancel := context.WithTimeout(ctx, driversTimeout)
	defer cancel()
	client, release, err := a.catalog.Storage(ctx, plugin)
	var all []storage.Driver
	if err == nil {
		defer release()
		all, err = client.Drivers(ctx)
	}
	if err != nil && status.Code(err) != codes.Unimplemented {
		if ctx.Err() == nil {
			a.log.Warn("a storage plugin does not say which drivers it brings; it is asked again", "plugin", plugin,
				"error", err)
		}
		return false
	}
	a.bring(ctx, plugin, all)
	return true
}

func (a *agent) bring(ctx context.Context, plugin string, all []storage.Driver) {
	if err := a.drivers.Bring(ctx, plugin, all); err != nil && ctx.Err() == nil {
		a.log.Error("drivers that a plugin brings were not taken over", "plugin", plugin, "error", err)
	}
}
