package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) agentReload() *cobra.Command {
	return &cobra.Command{
		Use: "reload", Short: "Make the agent of this host read its configuration again",
		Long: `Make the agent of this host read its configuration again, as SIGHUP does, and take over its
plugin and csi_driver blocks and log_level while workloads run. A changed plugin is tried
in a new process, and what serves goes on if that fails. A driver in use keeps its process
until it is not. What else has changed is named, and needs a restart of the agent. If the
configuration has a mistake, nothing is changed.`,
		Example: "pannier agent reload",
		Args:    exactly(),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.Agent.Reload(ctx, &hostv1.ReloadRequest{})
			if err != nil {
				return err
			}
			printed := a.print(resp, func() (err error) {
				for _, line := range reloaded(resp) {
					err = errors.Join(err, a.say(line))
				}
				return err
			})
			return errors.Join(printed, refusedBlocks(resp))
		}),
	}
}

// reloaded describes what became of the configuration, in lines.
func reloaded(m *hostv1.ReloadResponse) (lines []string) {
	for _, c := range m.GetChanges() {
		line := c.GetBlock() + ": " + c.GetOutcome()
		if c.GetMessage() != "" {
			line += ": " + c.GetMessage()
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		lines = append(lines, "no plugin or csi_driver block has changed")
	}
	for _, key := range m.GetRestart() {
		lines = append(lines, key+": has changed, and needs a restart of the agent")
	}
	return lines
}

// refusedBlocks is the error of a configuration of which not everything could be taken over.
func refusedBlocks(m *hostv1.ReloadResponse) error {
	var blocks []string
	for _, c := range m.GetChanges() {
		if c.GetOutcome() == "refused" {
			blocks = append(blocks, c.GetBlock())
		}
	}
	if len(blocks) == 0 {
		return nil
	}
	return &hintError{
		&codeError{fmt.Errorf("%s is not taken over, and goes on as before", strings.Join(blocks, ", ")), ExitRefused},
		"correct it, and run: pannier agent reload",
	}
}
