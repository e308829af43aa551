package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/host/internal/cli/bundle"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) monitorCommand() *cobra.Command {
	req := &hostv1.MonitorRequest{}
	cmd := &cobra.Command{
		Use: "monitor", Short: "Follow the agent's log, at a level of its own",
		Long: `Follow the log of an agent from now on, until it is interrupted. -log-level changes nothing of what
the agent itself writes. Lines with a secret that is known here (see pannier debug) are left out. Who
reads too slowly loses lines, and is told how many; the agent does not wait.`,
		Example: "pannier monitor -log-level debug",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			return a.monitor(ctx, client, req)
		}),
	}
	cmd.Flags().StringVar(&req.LogLevel, "log-level", "info",
		"the least `LEVEL` to show: trace, debug, info, warn or error")
	return cmd
}

func (a *App) monitor(ctx context.Context, client *api.Client, req *hostv1.MonitorRequest) error {
	token, err := a.token()
	if err != nil {
		return err
	}
	var secrets bundle.Bundle // for the search only
	secrets.Secret("the token of this command", token)
	stream, err := client.Agent.Monitor(ctx, req)
	return each(ctx, stream, err, func(m *hostv1.MonitorResponse) error {
		for _, path := range m.GetSecretFiles() {
			secrets.SecretFile(path)
		}
		if m.GetLost() > 0 {
			a.Note("%s lost, because they were read too slowly", Was(m.GetLost(), "line"))
		}
		if whose := secrets.Reveals([]byte(m.GetLine())); whose != "" {
			a.Note("a line is left out, because it has a secret in it: %s", whose)
			m.Line = ""
		}
		if m.GetLine() == "" {
			return nil
		}
		return a.showLogLine(m)
	})
}
