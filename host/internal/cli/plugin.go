package cli

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	hostv1 "github.com/pannier/pannier/host/api/proto/pannier/host/v1"
)

func (a *app) pluginCommand() *cobra.Command {
	return a.noun("plugin", "Plugin processes of this host", &cobra.Command{
		Use: "status", Short: "List the plugins",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.Plugins.ListPlugins(ctx, connect.NewRequest(&hostv1.ListPluginsRequest{}))
			if err != nil {
				return err
			}
			return a.print(resp.Msg, func() error { return a.showPlugins(resp.Msg.GetPlugins()) })
		}),
	})
}

func (a *app) showPlugins(plugins []*hostv1.Plugin) error {
	if len(plugins) == 0 {
		a.note("no plugins; the agent looks for them in its plugin_dir")
		return nil
	}
	t := newTable("NAME", "KIND", "VERSION", "STATE", "PID", "UP", "RESTARTS", "SHA256", "LAST ERROR")
	for _, p := range plugins {
		sum := p.GetSha256()
		t.row(p.GetName(), p.GetKind(), p.GetVersion(), pluginState(p.GetState()), number(p.GetPid()), age(p.GetStartedAt()),
			p.GetRestarts(), sum[:min(12, len(sum))], p.GetLastError())
	}
	return a.show(t)
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
