package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) serverCommand() *cobra.Command {
	return a.noun("server", "Agents that gossip with this one",
		a.serverMembers(), a.serverJoin(), a.serverForceLeave())
}

func (a *app) serverMembers() *cobra.Command {
	return &cobra.Command{
		Use: "members", Short: "List the agents, servers and nodes, that this one knows by gossip",
		Example: "pannier server members",
		Args:    exactly(),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.Members.ListMembers(ctx, &hostv1.ListMembersRequest{})
			if err != nil {
				return err
			}
			return a.print(resp, func() error {
				t := newTable("NAME", "ROLE", "STATUS", "LEADER", "ADDRESS", "RPC ADDRESS", "DATACENTER", "VERSION")
				for _, m := range resp.GetMembers() {
					leader := ""
					if m.GetLeader() {
						leader = "yes"
					}
					t.row(m.GetName(), m.GetRole(), memberStatus(m.GetStatus()), leader, m.GetAddress(), m.GetRpcAddress(),
						m.GetDatacenter(), m.GetVersion())
				}
				return a.show(t)
			})
		}),
	}
}

// memberStatus is a cell for what gossip says of an agent.
func memberStatus(status string) cell {
	switch status { // package discovery has them, and all of gossip
	case "alive":
		return cell{status, green}
	case "failed":
		return cell{status, red}
	default:
		return cell{status, yellow}
	}
}

func (a *app) serverJoin() *cobra.Command {
	return &cobra.Command{
		Use: "join ADDRESS...", Short: "Join other agents at their gossip address (host or host:port)",
		Example: "pannier server join 192.0.2.11",
		Args:    cobra.MinimumNArgs(1),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.Members.JoinMembers(ctx, &hostv1.JoinMembersRequest{Addresses: args})
			if err != nil {
				return err
			}
			return a.answer(resp, "%d of %d answered; pannier server members lists all", resp.GetJoined(), len(args))
		}),
	}
}

func (a *app) serverForceLeave() *cobra.Command {
	var prune bool
	cmd := &cobra.Command{
		Use: "force-leave NAME", Short: "Mark a failed agent as left",
		Example: "pannier server force-leave -prune server-3",
		Args:    exactly("NAME"),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.Members.ForceLeave(ctx, &hostv1.ForceLeaveRequest{Name: args[0], Prune: prune})
			if err != nil {
				return hint(err, ExitNotFound, "pannier server members lists the agents")
			}
			return a.answer(resp, "agent %q has left", args[0])
		}),
	}
	cmd.Flags().BoolVar(&prune, "prune", false, "forget it at once")
	return cmd
}
