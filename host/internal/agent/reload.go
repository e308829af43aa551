package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/apiserver/agentapi"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/system/servicemanager"
	"github.com/pannier/pannier/internal/errcode"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// Check returns what would keep an agent with this configuration, or a part of it, from working, as far as that can be
// known without starting anything. The error is config.Problems, with the places of the blocks.
func Check(cfg *config.Agent) error {
	var problems config.Problems
	found := func(block, text string) {
		for line := range strings.Lines(text) {
			problems = append(problems, cfg.ProblemOf(block, strings.TrimSuffix(line, "\n")))
		}
	}
	all, broken, err := supervisor.Check(supervisor.Config{
		PluginDir: cfg.PluginDir, DataDir: cfg.DataDir, Plugins: configured(cfg), Signing: cfg.PluginSigning,
	})
	if err != nil {
		return config.Problems{{Text: err.Error()}}
	}
	for _, name := range slices.Sorted(maps.Keys(broken)) {
		block := fmt.Sprintf("plugin %q", name)
		found(block, block+": "+broken[name].Error())
	}
	for _, p := range cfg.Plugins {
		block := fmt.Sprintf("plugin %q", p.Name)
		for _, s := range p.Frontend.Listens() {
			if err := process.CheckUser(s.Owner, s.Group); err != nil {
				found(block, fmt.Sprintf("%s: listen %q: %v", block, s.Name, err))
			}
		}
	}
	registry := drivers.Config{DataDir: cfg.DataDir, ReadSecret: config.ReadSecret}
	for _, d := range declared(cfg) {
		if err := registry.Check(d); err != nil {
			found(fmt.Sprintf("csi_driver %q", d.ID), err.Error())
		}
	}
	for _, u := range slices.Concat(driverUses(cfg), consulUses(cfg)) {
		if err := u.Check(all); err != nil && !u.Optional {
			found(u.Of, err.Error())
		}
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}

// errConfiguration means that the files have mistakes. Nothing was changed then.
var errConfiguration = errcode.InvalidArgument.New("the configuration is not taken over")

// reload reads the configuration again, and takes over its plugin and csi_driver blocks and log_level. What else has
// changed is named in the answer. It goes on if ctx ends.
func (a *agent) reload(ctx context.Context) (done *hostv1.ReloadResponse, err error) {
	done = &hostv1.ReloadResponse{}
	a.reloading.Lock()
	defer a.reloading.Unlock()
	a.told(a.manager.Reloading())
	defer func() { a.told(a.manager.Tell(servicemanager.Ready)) }()
	defer func() {
		e := events.Event{Topic: events.TopicAgent, Type: "reloaded", Subject: a.cfg.Name, Message: agentapi.Reloaded(done)}
		if err != nil {
			e.Type, e.Message = "reload-refused", err.Error()
			a.log.Error("the configuration was not taken over", "error", err)
		} else {
			a.log.Info("the configuration was taken over", "changes", e.Message)
		}
		a.events.Publish(e)
	}()
	next, err := a.cfg.Reload()
	if err != nil {
		return done, fmt.Errorf("%w: %w", errConfiguration, err)
	}
	done.Restart = a.cfg.Differences(next)
	if config.Interpolated(done.Restart) {
		return done, fmt.Errorf("%w: %s differs, which needs a restart of the agent, and the blocks may "+
			"be made of it", errConfiguration, strings.Join(done.Restart, ", "))
	}
	if err := Check(next); err != nil {
		return done, fmt.Errorf("%w: %w", errConfiguration, err)
	}
	plugins, err := a.pluginsOf(next)
	if err != nil {
		return done, err
	}
	was := a.blocks.Swap(next)
	a.log.SetLevel(hclog.LevelFromString(next.LogLevel))
	if was.LogLevel != next.LogLevel {
		done.Changes = append(done.Changes, &hostv1.ConfigurationChange{Block: "log_level", Outcome: "changed", Message: next.LogLevel})
	}
	ctx = context.WithoutCancel(ctx)
	a.openDoors(next)
	tried, err := a.plugins.Reload(ctx, plugins)
	if err != nil {
		return done, err
	}
	for _, name := range slices.Sorted(maps.Keys(tried)) {
		is := func(p config.Plugin) bool { return p.Name == name }
		c := changed("plugin", name, slices.ContainsFunc(was.Plugins, is), slices.ContainsFunc(next.Plugins, is))
		if err := tried[name]; err != nil {
			c.Outcome, c.Message = "refused", err.Error()
		}
		done.Changes = append(done.Changes, c)
	}
	a.openDoors(withRefused(next, was, tried))
	for _, p := range next.Plugins { // what a front door may do, and what the host keeps, needs no new process
		n := slices.IndexFunc(was.Plugins, func(w config.Plugin) bool { return w.Name == p.Name })
		if _, listed := tried[p.Name]; n >= 0 && !listed &&
			(p.StateLimit != was.Plugins[n].StateLimit || !p.Frontend.SameAPI(was.Plugins[n].Frontend)) {
			done.Changes = append(done.Changes, changed("plugin", p.Name, true, true))
		}
	}
	waits, err := a.drivers.Reload(ctx, declared(next))
	for _, id := range slices.Sorted(maps.Keys(waits)) {
		is := func(d config.Driver) bool { return d.ID == id }
		c := changed("csi_driver", id, slices.ContainsFunc(was.Drivers, is), slices.ContainsFunc(next.Drivers, is))
		if waits[id] != "" {
			c.Outcome, c.Message = c.Outcome+", waits", waits[id]
		}
		done.Changes = append(done.Changes, c)
	}
	return done, err
}

// withRefused returns a configuration with the front doors as they were whose changes were refused.
func withRefused(next, was *config.Agent, tried map[string]error) *config.Agent {
	settled := *next
	settled.Plugins = slices.Clone(next.Plugins)
	for n, p := range settled.Plugins {
		before := slices.IndexFunc(was.Plugins, func(w config.Plugin) bool { return w.Name == p.Name })
		if tried[p.Name] != nil && before >= 0 {
			settled.Plugins[n].Frontend = was.Plugins[before].Frontend
		}
	}
	return &settled
}

// changed is what became of a block.
func changed(kind, name string, was, is bool) *hostv1.ConfigurationChange {
	c := &hostv1.ConfigurationChange{Block: fmt.Sprintf("%s %q", kind, name), Outcome: "changed"}
	switch {
	case !was:
		c.Outcome = "added"
	case !is:
		c.Outcome = "removed"
	}
	return c
}
