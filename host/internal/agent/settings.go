package agent

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/storage"
)

func newLogger(cfg *config.Agent, w io.Writer) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name: "pannier", Output: w, Level: hclog.LevelFromString(cfg.LogLevel), JSONFormat: cfg.LogFormat == "json",
	})
}

func (a *agent) httpAddress() string {
	return net.JoinHostPort(a.cfg.BindAddr, strconv.Itoa(a.cfg.HTTPPort))
}

// declared are the drivers of the configuration.
func (a *agent) declared() []drivers.Spec {
	var out []drivers.Spec
	for _, d := range a.cfg.Drivers {
		out = append(out, drivers.Spec{
			ID: d.ID, Type: drivers.Type(d.Type), Endpoint: d.Endpoint, Command: d.Command, User: d.User,
			MountDir: d.MountDir, StagePublishBaseDir: d.StagePublishBaseDir, HealthTimeout: d.HealthTimeout,
			Source: drivers.SourceConfig,
		})
	}
	return out
}

// health is what keeps the agent from doing its work.
func (a *agent) health() (reasons []string) {
	if a.cluster != nil {
		stats := a.cluster.Stats()
		reasons = append(reasons, ledgerHealth(stats)...)
		if a.hosts != nil && stats.Full != nil { // others go on without this server
			reasons = append(reasons, stats.Full.Error())
		}
	}
	if a.keys != nil {
		if problem := a.keys.Problem(); problem != "" {
			reasons = append(reasons, problem)
		}
	}
	if a.hosts != nil {
		if err := a.hosts.lease.Valid(); err != nil {
			reasons = append(reasons, err.Error())
		}
	}
	return append(reasons, a.storageHealth()...)
}

// ledgerHealth is what keeps a server's ledger from taking commands.
func ledgerHealth(s cluster.Stats) []string {
	switch {
	case s.Err != nil:
		return []string{fmt.Sprintf("the ledger takes no command: %v", s.Err)}
	case !s.Leader && s.LeaderName == "":
		return []string{"the ledger has no leader (see: pannier server members)"}
	default:
		return nil
	}
}

// storageHealth is what keeps the host from reaching its drivers. A plugin that it
// does not need for that may fail: the plugins' status and the events tell of it.
func (a *agent) storageHealth() (reasons []string) {
	plugins := a.plugins.Status()
	if slices.ContainsFunc(plugins, isDefault) { // no other is taken in its place
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

// isDefault tells the storage plugin that no other is taken in the place of.
func isDefault(p supervisor.Status) bool { return p.Name == catalog.DefaultStorage }

// probe asks a plugin's process that is to take over from another whether it can: that of
// the storage plugin through which the drivers are reached, whether it sees them as they are.
func (a *agent) probe(ctx context.Context, name, kind string, conn grpc.ClientConnInterface) error {
	if kind != storage.Kind || name != catalog.DefaultStorage && slices.ContainsFunc(a.plugins.Status(), isDefault) {
		return nil
	}
	select {
	case <-a.driversUp:
		return a.drivers.Agrees(ctx, storage.NewClient(conn))
	default:
		return nil // nobody has used a driver yet
	}
}

func (a *agent) pluginEvent(e supervisor.Event) {
	a.events.Publish(events.Event{Time: e.Time, Topic: events.TopicPlugin, Type: string(e.Type), Subject: e.Status.Name, Message: e.Message})
}

// publish tells the host's followers what a plugin says that happened in it. What the host
// itself says of a plugin has no "event" among its details.
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
