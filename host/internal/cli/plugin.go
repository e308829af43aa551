package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	escape "github.com/pannier/pannier/internal/printable"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func pluginNoun() noun {
	verbs := append(swapVerbs(), pinVerbs()...)
	plugin := nounOf("plugin", "Plugin processes of this host", append(verbs, pluginStatusVerbs()...))
	plugin.others = agentsOwn("plugin", "install", "upgrade", "info", "test", "new")
	return plugin
}

// grace is the flag -grace.
type grace struct {
	flags *pflag.FlagSet
	given time.Duration
}

// add adds the flag to a command.
func (g *grace) add(f *pflag.FlagSet) {
	g.flags = f
	f.DurationVar(&g.given, "grace", 0,
		"give up the calls of the replaced process after `DURATION`, at most 1h; "+
			"callers\nrepeat them where that is allowed (default: 5m, or 10s if it is unhealthy\nor does not answer)")
}

// proto is nil without the flag.
func (g *grace) proto() *durationpb.Duration {
	if !g.flags.Changed("grace") {
		return nil
	}
	return durationpb.New(g.given)
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

// ordered is the answer to an order: the plugin as it is then.
type ordered interface {
	proto.Message
	GetPlugin() *hostv1.Plugin
}

// pluginOrder is an order to the plugin of the first argument.
func pluginOrder(ask func(ctx context.Context, c *call) (ordered, error)) work {
	return func(ctx context.Context, c *call) error {
		m, err := ask(ctx, c)
		err = hint(err, ExitRefused, "pannier plugin history %s shows what was tried", c.args[0])
		return c.Print(m, err, func() { c.Say("%s", orderedText(m)) })
	}
}

// swapVerbs replace a plugin's process.
func swapVerbs() []verb {
	var swap, promote, rollback, restart grace
	var part percent
	var to string
	return []verb{
		{
			use: "swap NAME", short: "Let the binary in the plugin directory take over now",
			long: `Let the binary in the plugin directory take over now: its highest version that the
configuration allows, even one that was refused before. The agent does so by itself when
a binary arrives; this waits for it, and is a second try. The exit code is 0 when the binary
serves, also if it did before, and 4 when it cannot take over; callers then keep the process
that they have.

With -canary, the new process gets a part of the calls only, until pannier plugin promote or
rollback; pannier plugin status shows how many fail in both. If it fails more of them than the
one that serves, ends or is unhealthy, it is ended and refused, and its failed calls are
repeated. A pinned plugin can have a canary, so pin it before the file comes.`,
			example: "csi-bridge\n-canary 10% csi-bridge",
			flags: func(f *pflag.FlagSet) {
				swap.add(f)
				f.Var(&part, "canary", "give it `PERCENT` of the calls, 1% to 99%")
			},
			apart: []string{"canary grace"},
			run: pluginOrder(func(ctx context.Context, c *call) (ordered, error) {
				return c.Plugins.SwapPlugin(ctx,
					&hostv1.SwapPluginRequest{Name: c.args[0], Grace: swap.proto(), CanaryPercent: int32(part)})
			}),
		},
		{
			use: "promote NAME", short: "Let a plugin's canary serve", example: "csi-bridge", flags: promote.add,
			long: `Let the process serve that pannier plugin swap -canary has started. A pinned plugin is then
pinned to it. It is on probation like any other new binary.`,
			run: pluginOrder(func(ctx context.Context, c *call) (ordered, error) {
				return c.Plugins.PromotePlugin(ctx, &hostv1.PromotePluginRequest{Name: c.args[0], Grace: promote.proto()})
			}),
		},
		{
			use: "restart NAME", short: "Replace a plugin's process by a new one of the same binary", example: "csi-bridge",
			long: `Replace a plugin's process by a new one of the same binary, which is brought up beside
the old one as for a swap: no call fails, even if the old process hangs. The exit code is
4 when the new process cannot take over; callers then keep the one that they have.`,
			flags: restart.add,
			run: pluginOrder(func(ctx context.Context, c *call) (ordered, error) {
				return c.Plugins.RestartPlugin(ctx, &hostv1.RestartPluginRequest{Name: c.args[0], Grace: restart.proto()})
			}),
		},
		{
			use: "rollback NAME", short: "Bring back a binary that served before",
			long: `Bring back the binary that served before, or with -to another one that the agent keeps:
pannier plugin versions lists them. What serves now, and what is preferred in the plugin
directory, is refused until it changes, or until pannier plugin swap. While there is a canary,
only that is ended and refused.`,
			example: "csi-bridge\ncsi-bridge -to 1.1.0",
			flags: func(f *pflag.FlagSet) {
				rollback.add(f)
				f.StringVar(&to, "to", "", "the `VERSION` to bring back, or the first 6 or more digits of its sum")
			},
			run: pluginOrder(func(ctx context.Context, c *call) (ordered, error) {
				return c.Plugins.RollbackPlugin(ctx,
					&hostv1.RollbackPluginRequest{Name: c.args[0], To: to, Grace: rollback.proto()})
			}),
		},
	}
}

// pinVerbs set which binaries of a plugin may serve, or examine one.
func pinVerbs() []verb {
	remove := &hostv1.RemovePluginRequest{}
	return []verb{
		{
			use: "pin NAME [VERSION]", short: "Keep a plugin at one binary, whatever comes into the plugin directory",
			long: `Keep a plugin at one binary, whatever comes into the plugin directory: the one of this
version, or the one that serves now. The first 6 digits of a sum do as well. pannier
plugin versions lists what can be pinned, and the newer file that waits meanwhile.`,
			example: "csi-bridge",
			run: pluginOrder(func(ctx context.Context, c *call) (ordered, error) {
				return c.Plugins.PinPlugin(ctx, &hostv1.PinPluginRequest{Name: c.args[0], Sha256: c.arg(1)})
			}),
		},
		{
			use: "unpin NAME", short: "Let what is in the plugin directory serve again", example: "csi-bridge",
			run: pluginOrder(func(ctx context.Context, c *call) (ordered, error) {
				return c.Plugins.UnpinPlugin(ctx, &hostv1.UnpinPluginRequest{Name: c.args[0]})
			}),
		},
		{
			use: "remove NAME", short: "End a plugin whose file is gone, or with its files", example: "-files my-storage",
			long: `End a plugin whose file is gone from the plugin directory, and forget the copies of it
that the agent keeps. Until then the copy that served goes on, also when the agent is
started again. Drivers that it brought go with it. The exit code is 4 when the file is still
there, when workloads of this host depend on the plugin, or when the configuration or a
registered driver names it, unless -force is given; the message names them.`,
			danger: &danger{when: &remove.Force, risk: "what names plugin %[1]q does not work without it"},
			flags: func(f *pflag.FlagSet) {
				f.BoolVar(&remove.Files, "files", false,
					"remove its files from the plugin directory first, all versions of them (root only)")
				f.BoolVar(&remove.Force, "force", false, "remove it even while something names it")
			},
			run: order("plugin %q is removed", func(ctx context.Context, c *call) (any, error) {
				remove.Name = c.args[0]
				return c.Plugins.RemovePlugin(ctx, remove)
			}),
		},
		{
			use: "verify FILE", short: "Test whether a binary could take over, without a swap",
			long: `Test whether a binary could take over, without a swap. The agent starts a process of it
beside the serving one, configures and probes it as the plugin of the file's name (NAME, or
NAME_vX.Y.Z), and ends it; nothing is left. The exit code is 4 when a swap would
fail. Only root and the agent's own user may do this; the file and its folder must be
writable by their owner only.`,
			example: "./csi-bridge_v1.2.0",
			run: func(ctx context.Context, c *call) error {
				path, err := filepath.Abs(c.args[0])
				if err != nil {
					return fmt.Errorf("find %s: %w", c.args[0], err)
				}
				v, err := c.Plugins.VerifyPlugin(ctx, &hostv1.VerifyPluginRequest{Path: path})
				t := NewTable()
				t.Row("Name", v.GetName())
				t.Row("Kind", v.GetKind())
				t.Row("Version", v.GetVersion())
				t.Row("SHA256", v.GetSha256())
				t.Row("Health", healthy(v.GetHealthy()))
				err = c.Tables(v, err, t)
				if err == nil && !v.GetKnown() && c.format != formatJSON {
					c.Note("this host has no plugin of the file's name: it was tried without a configuration")
				}
				if err == nil && !v.GetHealthy() {
					err = Coded(ExitRefused, fmt.Errorf("it reports itself unhealthy: %s", v.GetMessage()))
				}
				return err
			},
		},
	}
}

// orderedText names the generation that serves now, and the swap if the order was one.
func orderedText(m ordered) string {
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
	return line
}
