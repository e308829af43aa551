package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) pluginList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the plugins",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			return a.listPlugins(ctx, func(plugins []*hostv1.Plugin) error {
				t := newTable("NAME", "KIND", "VERSION", "STATE", "UP")
				for _, p := range plugins {
					t.row(p.GetName(), p.GetKind(), p.GetVersion(), pluginState(p.GetState()), up(p))
				}
				return a.show(t)
			})
		}),
	}
}

func (a *app) pluginStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status [NAME]", Short: "List the plugins with their processes, or show one",
		Args: between(0, "NAME"), ValidArgsFunction: a.completeIDs(pluginNames),
		RunE: a.do(func(ctx context.Context, args []string) error {
			if len(args) == 0 {
				return a.listPlugins(ctx, a.showPlugins)
			}
			client, err := a.api()
			if err != nil {
				return err
			}
			p, err := onePlugin(ctx, client, args[0])
			if err != nil {
				return err
			}
			return a.print(p, func() error { return a.showPlugin(p) })
		}),
	}
}

func (a *app) pluginHistory() *cobra.Command {
	return &cobra.Command{
		Use: "history NAME", Short: "Show a plugin's swaps, the last 20",
		Long: "Show a plugin's swaps, the last 20, the newest last. With -o json each is one line.",
		Args: exactly("NAME"), ValidArgsFunction: a.completeIDs(pluginNames),
		RunE: a.do(func(ctx context.Context, args []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			p, err := onePlugin(ctx, client, args[0])
			if err != nil {
				return err
			}
			if a.format != formatJSON {
				return a.showSwaps(p.GetSwaps())
			}
			for _, w := range p.GetSwaps() {
				if err := a.printJSON(w, ""); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

// listPlugins asks for all plugins; table shows them to people.
func (a *app) listPlugins(ctx context.Context, table func([]*hostv1.Plugin) error) error {
	client, err := a.api()
	if err != nil {
		return err
	}
	resp, err := client.Plugins.ListPlugins(ctx, connect.NewRequest(&hostv1.ListPluginsRequest{}))
	if err != nil {
		return err
	}
	return a.print(resp.Msg, func() error {
		if len(resp.Msg.GetPlugins()) == 0 {
			return a.showPlugins(nil)
		}
		return table(resp.Msg.GetPlugins())
	})
}

func (a *app) showPlugins(plugins []*hostv1.Plugin) error {
	if len(plugins) == 0 {
		a.note("no plugins; the agent looks for them in its plugin_dir")
		return nil
	}
	t := newTable("NAME", "KIND", "VERSION", "STATE", "PID", "UP", "CALLS", "RESTARTS", "SHA256", "LAST ERROR")
	for _, p := range plugins {
		t.row(p.GetName(), p.GetKind(), p.GetVersion(), pluginState(p.GetState()), number(p.GetPid()), up(p),
			p.GetLeases(), p.GetRestarts(), shortSum(p.GetSha256()), p.GetLastError())
	}
	return a.show(t)
}

// shownSwaps is how many swaps a plugin's status shows; its history has all.
const shownSwaps = 5

func (a *app) showPlugin(p *hostv1.Plugin) error {
	t := newTable()
	t.row("Name", p.GetName())
	t.row("Kind", p.GetKind())
	t.row("State", pluginState(p.GetState()))
	t.row("Version", p.GetVersion())
	t.row("SHA256", p.GetSha256())
	t.row("Generation", number(int64(p.GetGeneration())))
	if p.GetPid() != 0 {
		t.row("Process", fmt.Sprintf("%d, up %s, %s", p.GetPid(), up(p), count(int64(p.GetRestarts()), "restart")))
	} else {
		t.row("Process", fmt.Sprintf("none, %s", count(int64(p.GetRestarts()), "restart")))
	}
	t.row("Calls", fmt.Sprintf("%d in flight", p.GetLeases()))
	if n := p.GetDraining(); n > 0 {
		t.row("Draining", fmt.Sprintf("%d older, with calls of their own", n))
	}
	t.row("Last error", p.GetLastError())
	if p.GetNextTryAt() != nil {
		t.row("Next try", ahead(p.GetNextTryAt()))
	}
	t.row("Pinned", p.GetPinned())
	t.row("Served before", p.GetLastGood())
	if err := a.show(t); err != nil {
		return err
	}
	if err := a.showRefused(p.GetRefused()); err != nil {
		return err
	}
	swaps := p.GetSwaps()
	if len(swaps) == 0 {
		return nil
	}
	if err := a.heading("Swaps"); err != nil {
		return err
	}
	return a.showSwaps(swaps[max(0, len(swaps)-shownSwaps):])
}

func (a *app) showRefused(refused map[string]string) error {
	if len(refused) == 0 {
		return nil
	}
	if err := a.heading("Refused until they change, or until pannier plugin swap"); err != nil {
		return err
	}
	t := newTable("SHA256", "REASON")
	for _, sum := range slices.Sorted(maps.Keys(refused)) {
		t.row(shortSum(sum), refused[sum])
	}
	return a.show(t)
}

func (a *app) showSwaps(swaps []*hostv1.PluginSwap) error {
	if len(swaps) == 0 {
		a.note("the plugin has never been swapped")
		return nil
	}
	t := newTable("AT", "FROM", "TO", "TOOK", "CALLS CARRIED", "RESULT")
	for _, w := range swaps {
		result := cell{"swapped", green}
		switch {
		case w.GetError() != "":
			result = cell{"refused: " + w.GetError(), red}
		case w.GetRollback():
			result = cell{"rolled back", yellow}
		}
		t.row(w.GetAt().AsTime().Local().Format(time.DateTime), side(w.GetFrom()), side(w.GetTo()), short(w.GetTook().AsDuration()), w.GetCarried(), result)
	}
	return a.show(t)
}

// lastSwap is nil where there was none.
func lastSwap(p *hostv1.Plugin) *hostv1.PluginSwap {
	if swaps := p.GetSwaps(); len(swaps) > 0 {
		return swaps[len(swaps)-1]
	}
	return nil
}

func side(g *hostv1.PluginGeneration) string {
	return generation(g.GetGeneration(), g.GetVersion(), g.GetSha256())
}

// generation is one process of a plugin, as far as it came.
func generation(n uint64, version, sum string) string {
	if n == 0 {
		return "sha256 " + shortSum(sum)
	}
	return fmt.Sprintf("generation %d (version %s, sha256 %s)", n, version, shortSum(sum))
}

// shortSum is enough of a sum to tell it from others.
func shortSum(sum string) string { return sum[:min(12, len(sum))] }

// up is how long a plugin's process has run.
func up(p *hostv1.Plugin) string {
	if p.GetPid() == 0 {
		return ""
	}
	return age(p.GetStartedAt())
}

func pluginState(state string) cell {
	switch state {
	case "running":
		return cell{state, green}
	case "failed", "unhealthy":
		return cell{state, red}
	default:
		return cell{state, yellow}
	}
}

// number leaves out a zero.
func number(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
