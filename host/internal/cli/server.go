package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) serverCommand() *cobra.Command {
	return a.Noun("server", "Agents that gossip with this one",
		&cobra.Command{
			Use: "members", Short: "List the agents, servers and nodes, that this one knows by gossip",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
				resp, err := client.Members.ListMembers(ctx, &hostv1.ListMembersRequest{})
				return a.Print(resp, err, func() {
					t := NewTable("NAME", "ROLE", "STATUS", "LEADER", "ADDRESS", "RPC ADDRESS", "DATACENTER", "VERSION")
					for _, m := range resp.GetMembers() {
						leader := ""
						if m.GetLeader() {
							leader = "yes"
						}
						t.Row(m.GetName(), m.GetRole(), memberStatus(m.GetStatus()), leader, m.GetAddress(), m.GetRpcAddress(),
							m.GetDatacenter(), m.GetVersion())
					}
					a.Show(t)
				})
			}),
		},
		&cobra.Command{
			Use: "join ADDRESS...", Short: "Join other agents at their gossip address (host or host:port)",
			Example: "pannier server join 192.0.2.11",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
				resp, err := client.Members.JoinMembers(ctx, &hostv1.JoinMembersRequest{Addresses: args})
				return a.Done(resp, err, "%d of %d answered; pannier server members lists all", resp.GetJoined(), len(args))
			}),
		},
		a.serverForceLeave())
}

// memberStatus is a cell for what gossip says of an agent.
func memberStatus(status string) Cell {
	switch status { // package discovery has them, and all of gossip
	case "alive":
		return Cell{status, Green}
	case "failed":
		return Cell{status, Red}
	default:
		return Cell{status, Yellow}
	}
}

func (a *App) serverForceLeave() *cobra.Command {
	var prune bool
	cmd := &cobra.Command{
		Use: "force-leave NAME", Short: "Mark a failed agent as left",
		Example: "pannier server force-leave -prune server-3",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.Members.ForceLeave(ctx, &hostv1.ForceLeaveRequest{Name: args[0], Prune: prune})
			return a.Done(resp, err, "agent %q has left", args[0])
		}),
	}
	cmd.Flags().BoolVar(&prune, "prune", false, "forget it at once")
	return cmd
}
