package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) pluginCommand() *cobra.Command {
	return a.Noun("plugin", "Plugin processes of this host",
		append(agentsOwn("plugin", "install", "upgrade", "info", "test", "new"),
			a.pluginList(), a.pluginStatus(), a.pluginVersions(), a.pluginHistory(), a.pluginLogs(),
			a.pluginSwap(), a.pluginPromote(), a.pluginRollback(), a.pluginRestart(), a.pluginPin(), a.pluginUnpin(),
			a.pluginRemove(), a.pluginVerify())...)
}

// grace is the flag -grace.
type grace struct {
	cmd   *cobra.Command
	given time.Duration
}

// of adds the flag to a command.
func (g *grace) of(cmd *cobra.Command) *cobra.Command {
	g.cmd = cmd
	cmd.Flags().DurationVar(&g.given, "grace", 0,
		"give up the calls of the replaced process after `DURATION`, at most 1h; "+
			"callers\nrepeat them where that is allowed (default: 5m, or 10s if it is unhealthy\nor does not answer)")
	return cmd
}

// proto is nil without the flag.
func (g *grace) proto() *durationpb.Duration {
	if !g.cmd.Flags().Changed("grace") {
		return nil
	}
	return durationpb.New(g.given)
}

func (a *App) pluginSwap() *cobra.Command {
	var grace grace
	var part percent
	cmd := grace.of(a.pluginOrder("swap NAME", "Let the binary in the plugin directory take over now",
		`Let the binary in the plugin directory take over now: its highest version that the
configuration allows, even one that was refused before. The agent does so by itself when
a binary arrives; this is a second try. The exit code is 4 when it cannot take over; callers
then keep the process that they have.

With -canary, the new process gets a part of the calls only, until pannier plugin promote or
rollback; pannier plugin status shows how many fail in both. If it fails more of them than the
one that serves, ends or is unhealthy, it is ended and refused, and its failed calls are
repeated. A pinned plugin can have a canary, so pin it before the file comes.`,
		func(ctx context.Context, client *api.Client, args []string) (ordered, error) {
			return client.Plugins.SwapPlugin(ctx,
				&hostv1.SwapPluginRequest{Name: args[0], Grace: grace.proto(), CanaryPercent: int32(part)})
		}))
	cmd.Flags().Var(&part, "canary", "give it `PERCENT` of the calls, 1% to 99%")
	cmd.MarkFlagsMutuallyExclusive("canary", "grace")
	cmd.Example += "\npannier plugin swap -canary 10% csi-bridge"
	return cmd
}

// percent is the value of a flag such as 10%.
type percent int32

func (p *percent) String() string { return "" }

func (p *percent) Type() string { return "PERCENT" }

func (p *percent) Set(s string) error {
	n, err := strconv.ParseInt(strings.TrimSuffix(s, "%"), 10, 32)
	if err != nil || n < 1 || n > 99 {
		return errors.New("must be from 1% to 99%")
	}
	*p = percent(n)
	return nil
}

func (a *App) pluginPromote() *cobra.Command {
	var grace grace
	return grace.of(a.pluginOrder("promote NAME", "Let a plugin's canary serve",
		`Let the process serve that pannier plugin swap -canary has started. A pinned plugin is then
pinned to it. It is on probation like any other new binary.`,
		func(ctx context.Context, client *api.Client, args []string) (ordered, error) {
			return client.Plugins.PromotePlugin(ctx, &hostv1.PromotePluginRequest{Name: args[0], Grace: grace.proto()})
		}))
}

func (a *App) pluginRestart() *cobra.Command {
	var grace grace
	return grace.of(a.pluginOrder("restart NAME", "Replace a plugin's process by a new one of the same binary",
		`Replace a plugin's process by a new one of the same binary, which is brought up beside
the old one as for a swap: no call fails, even if the old process hangs. The exit code is
4 when the new process cannot take over; callers then keep the one that they have.`,
		func(ctx context.Context, client *api.Client, args []string) (ordered, error) {
			return client.Plugins.RestartPlugin(ctx, &hostv1.RestartPluginRequest{Name: args[0], Grace: grace.proto()})
		}))
}

func (a *App) pluginRollback() *cobra.Command {
	var grace grace
	var to string
	cmd := grace.of(a.pluginOrder("rollback NAME", "Bring back a binary that served before",
		`Bring back the binary that served before, or with -to another one that the agent keeps:
pannier plugin versions lists them. What serves now, and what is preferred in the plugin
directory, is refused until it changes, or until pannier plugin swap. While there is a canary,
only that is ended and refused.`,
		func(ctx context.Context, client *api.Client, args []string) (ordered, error) {
			return client.Plugins.RollbackPlugin(ctx,
				&hostv1.RollbackPluginRequest{Name: args[0], To: to, Grace: grace.proto()})
		}))
	cmd.Flags().StringVar(&to, "to", "", "the `VERSION` to bring back, or the first 6 or more digits of its sum")
	cmd.Example += "\npannier plugin rollback csi-bridge -to 1.1.0"
	return cmd
}

func (a *App) pluginPin() *cobra.Command {
	return a.pluginOrder("pin NAME [VERSION]", "Keep a plugin at one binary, whatever comes into the plugin directory",
		`Keep a plugin at one binary, whatever comes into the plugin directory: the one of this
version, or the one that serves now. The first 6 digits of a sum do as well. pannier
plugin versions lists what can be pinned, and the newer file that waits meanwhile.`,
		func(ctx context.Context, client *api.Client, args []string) (ordered, error) {
			return client.Plugins.PinPlugin(ctx, &hostv1.PinPluginRequest{Name: args[0], Sha256: append(args, "")[1]})
		})
}

func (a *App) pluginUnpin() *cobra.Command {
	return a.pluginOrder("unpin NAME", "Let what is in the plugin directory serve again", "",
		func(ctx context.Context, client *api.Client, args []string) (ordered, error) {
			return client.Plugins.UnpinPlugin(ctx, &hostv1.UnpinPluginRequest{Name: args[0]})
		})
}

func (a *App) pluginRemove() *cobra.Command {
	var files bool
	cmd := &cobra.Command{
		Use: "remove NAME", Short: "End a plugin whose file is gone, or with its files",
		Long: `End a plugin whose file is gone from the plugin directory, and forget the copies of it
that the agent keeps. Until then the copy that served goes on, also when the agent is
started again. The exit code is 4 when the file is still there, or when workloads of this
host depend on the plugin; the message names them.`,
		Example: "pannier plugin remove -files my-storage",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.Plugins.RemovePlugin(ctx, &hostv1.RemovePluginRequest{Name: args[0], Files: files})
			return a.Done(resp, err, "plugin %q is removed", args[0])
		}),
	}
	cmd.Flags().BoolVar(&files, "files", false,
		"remove its files from the plugin directory first, all versions of them (root only)")
	return cmd
}

// ordered is the answer to an order: the plugin as it is then.
type ordered interface {
	proto.Message
	GetPlugin() *hostv1.Plugin
}

func (a *App) pluginOrder(use, short, long string,
	order func(ctx context.Context, client *api.Client, args []string) (ordered, error),
) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long,
		Example: "pannier plugin " + strings.Fields(use)[0] + " csi-bridge",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			m, err := order(ctx, client, args)
			err = hint(err, ExitRefused, "pannier plugin history %s shows what was tried", args[0])
			return a.Print(m, err, func() { a.showOrdered(m) })
		}),
	}
}

// showOrdered shows which generation serves now, and the swap if the order was one.
func (a *App) showOrdered(m ordered) {
	p, swap := m.GetPlugin(), true
	switch m.(type) { // the others fail when there is nothing to do
	case *hostv1.PinPluginResponse, *hostv1.UnpinPluginResponse:
		swap = false
	}
	line := fmt.Sprintf("plugin %q is %s; pannier plugin status %s shows more", p.GetName(), p.GetState(), p.GetName())
	if p.GetPid() != 0 {
		line = fmt.Sprintf("plugin %q: %s serves", p.GetName(), generation(p.GetGeneration(), p.GetVersion(), p.GetSha256()))
	}
	swap = swap && p.GetCanary() == nil && p.GetPid() != 0
	if w := lastSwap(p); swap && w.GetTo().GetGeneration() == p.GetGeneration() {
		line += fmt.Sprintf(", after a swap that took %s; %s went on with generation %d", short(w.GetTook().AsDuration()),
			escape.Count(w.GetCarried(), "call"), w.GetFrom().GetGeneration())
	}
	if p.GetPinned() != "" {
		line += "; it is pinned"
	}
	if c := p.GetCanary(); c != nil {
		line += "; " + canary(c)
	}
	a.Say("%s", line)
}

func (a *App) pluginVerify() *cobra.Command {
	return &cobra.Command{
		Use: "verify FILE", Short: "Test whether a binary could take over, without a swap",
		Long: `Test whether a binary could take over, without a swap. The agent starts a process of it
beside the serving one, configures and probes it as the plugin of the file's name (NAME, or
NAME_vX.Y.Z), and ends it; nothing is left. The exit code is 4 when a swap would
fail. Only root and the agent's own user may do this; the file and its folder must be
writable by their owner only.`,
		Example: "pannier plugin verify ./csi-bridge_v1.2.0",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			path, err := filepath.Abs(args[0])
			if err != nil {
				return fmt.Errorf("find %s: %w", args[0], err)
			}
			resp, err := client.Plugins.VerifyPlugin(ctx, &hostv1.VerifyPluginRequest{Path: path})
			if err := a.Print(resp, err, func() { a.showVerified(resp) }); err != nil || resp.GetHealthy() {
				return err
			}
			return Coded(ExitRefused, fmt.Errorf("it reports itself unhealthy: %s", resp.GetMessage()))
		}),
	}
}

func (a *App) showVerified(v *hostv1.VerifyPluginResponse) {
	t := NewTable()
	t.Row("Name", v.GetName())
	t.Row("Kind", v.GetKind())
	t.Row("Version", v.GetVersion())
	t.Row("SHA256", v.GetSha256())
	t.Row("Health", healthy(v.GetHealthy()))
	a.Show(t)
	if !v.GetKnown() {
		a.Note("this host has no plugin of the file's name: it was tried without a configuration")
	}
}

// onePlugin reads one plugin of a node.
func onePlugin(ctx context.Context, client *api.Client, node, name string) (*hostv1.Plugin, error) {
	resp, err := client.Plugins.ListPlugins(ctx, &hostv1.ListPluginsRequest{Node: node})
	if err != nil {
		return nil, err
	}
	for _, p := range resp.GetPlugins() {
		if p.GetName() == name {
			return p, nil
		}
	}
	return nil, Hinted(Coded(ExitNotFound, fmt.Errorf("no plugin %q", name)), "pannier plugin list lists the plugins")
}
