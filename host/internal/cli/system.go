package cli

import (
	"context"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) systemCommand() *cobra.Command {
	return a.noun("system", "The ledger as a whole", a.systemGC())
}

func (a *app) systemGC() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: "gc", Short: "Clear away, now, what nothing needs any more",
		Long: `Clear away, now, what nothing needs any more: claims of workloads that have ended,
ended workloads, drivers that no node has, nodes that are down and hold nothing, ACL
tokens that have expired. The leader does so by itself from time to time (gc in the
agent's configuration), and what is not old enough stays.`,
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.System.CollectGarbage(ctx, connect.NewRequest(&hostv1.CollectGarbageRequest{DryRun: dryRun}))
			if err != nil {
				return err
			}
			return a.print(resp.Msg, func() error {
				if len(resp.Msg.GetGarbage()) == 0 {
					a.note("nothing to clear away")
					return nil
				}
				t := newTable("KIND", "NAMESPACE", "ID", "SINCE", "REASON")
				for _, g := range resp.Msg.GetGarbage() {
					t.row(g.GetKind(), g.GetNamespace(), g.GetId(), since(g.GetSince()), g.GetReason())
				}
				return a.show(t)
			})
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only tell what would go")
	return cmd
}
