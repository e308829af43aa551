package cli

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/pannier/pannier/host/internal/fencing/fence"
)

// fenceCommand is what the agent runs beside itself; people have no use for it.
func (a *app) fenceCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{Use: "fence", Short: "Guard the volumes of a node that loses its servers", Hidden: true, Args: exactly()}
	cmd.Flags().StringVar(&dir, "dir", "", "the fence's `FOLDER`, in the agent's data directory")
	cmd.RunE = a.do(func(ctx context.Context, _ []string) error {
		return fence.Run(ctx, dir, hclog.New(&hclog.LoggerOptions{Name: "fence", Output: a.err}))
	})
	return cmd
}
