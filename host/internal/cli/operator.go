package cli

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) operatorCommand() *cobra.Command {
	return a.noun("operator", "The cluster's servers",
		a.noun("raft", "Servers that take part in raft", a.raftListPeers(), a.raftTransfer(), a.raftRemove()),
		a.noun("autopilot", "What the leader does about servers by itself", a.autopilotGet(), a.autopilotSet(), a.autopilotHealth()),
		a.noun("snapshot", "Copies of the ledger", a.snapshotSave(), a.snapshotRestore(), a.snapshotInspect()),
		a.noun("secrets", "The keys that seal secrets in the ledger", a.secretsStatus(), a.secretsRotate()))
}

// knownPeers is where the names of servers are to be had.
const knownPeers = "pannier operator raft list-peers lists the servers"

func (a *app) raftListPeers() *cobra.Command {
	return &cobra.Command{
		Use: "list-peers", Short: "List the servers that take part in raft",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.Operator.ListPeers(ctx, connect.NewRequest(&hostv1.ListPeersRequest{}))
			if err != nil {
				return err
			}
			return a.print(resp.Msg, func() error { return a.showPeers(resp.Msg.GetPeers()) })
		}),
	}
}

func (a *app) showPeers(peers []*hostv1.RaftPeer) error {
	t := newTable("NAME", "ADDRESS", "STATE", "VOTER", "HEALTH", "LAST CONTACT", "LAST INDEX", "VERSION")
	for _, p := range peers {
		state, contact := "follower", ""
		if p.GetLeader() {
			state = "leader"
		}
		if p.GetLastContact() != nil {
			contact = p.GetLastContact().AsDuration().Round(time.Millisecond).String()
		}
		t.row(p.GetName(), p.GetAddress(), state, yesNo(p.GetVoter()), healthy(p.GetHealthy()), contact, p.GetLastIndex(), p.GetVersion())
	}
	return a.show(t)
}

func (a *app) raftTransfer() *cobra.Command {
	return &cobra.Command{
		Use: "transfer-leadership [NAME]", Short: "Make another server lead: NAME, or one that is up to date",
		Args: between(0, "NAME"),
		RunE: a.do(func(ctx context.Context, args []string) error {
			req := &hostv1.TransferLeadershipRequest{}
			if len(args) > 0 {
				req.Name = args[0]
			}
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.Operator.TransferLeadership(ctx, connect.NewRequest(req))
			if err != nil {
				return hint(err, ExitNotFound, knownPeers)
			}
			return a.print(resp.Msg, func() error {
				if resp.Msg.GetLeader() == "" {
					return a.say("leadership is handed over; pannier operator raft list-peers shows to whom")
				}
				return a.say(fmt.Sprintf("server %q leads", resp.Msg.GetLeader()))
			})
		}),
	}
}

func (a *app) raftRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove-peer NAME", Short: "Take a server out of raft that is gone for good",
		Args: exactly("NAME"),
		RunE: a.do(func(ctx context.Context, args []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.Operator.RemovePeer(ctx, connect.NewRequest(&hostv1.RemovePeerRequest{Name: args[0]}))
			if err != nil {
				return hint(err, ExitNotFound, knownPeers)
			}
			return a.print(resp.Msg, func() error { return a.say(fmt.Sprintf("server %q takes no part any more", args[0])) })
		}),
	}
}

func (a *app) autopilotGet() *cobra.Command {
	return &cobra.Command{
		Use: "get", Short: "Show what autopilot does",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.Operator.GetAutopilot(ctx, connect.NewRequest(&hostv1.GetAutopilotRequest{}))
			if err != nil {
				return err
			}
			return a.print(resp.Msg, func() error { return a.showAutopilot(resp.Msg.GetAutopilot()) })
		}),
	}
}

func (a *app) showAutopilot(p *hostv1.Autopilot) error {
	t := newTable()
	t.row("Cleans up dead servers", yesNo(p.GetCleanupDeadServers()))
	t.row("Healthy with a contact within", p.GetLastContactThreshold().AsDuration())
	t.row("Votes when healthy for", p.GetServerStabilizationTime().AsDuration())
	quorum := fmt.Sprint(p.GetMinQuorum())
	if p.GetMinQuorum() == 0 {
		quorum = "as many as formed the cluster"
	}
	t.row("Leaves voters at least", quorum)
	return a.show(t)
}

func (a *app) autopilotSet() *cobra.Command {
	var cleanup bool
	var contact, stabilization time.Duration
	var quorum uint32
	cmd := &cobra.Command{
		Use: "set", Short: "Change it for all servers and for good, whatever their configuration's autopilot blocks say",
		Args: exactly(),
	}
	flags := cmd.Flags()
	flags.BoolVar(&cleanup, "cleanup-dead-servers", true, "take servers out that do not answer")
	flags.DurationVar(&contact, "last-contact-threshold", 0, "how long a healthy server may be without a leader")
	flags.DurationVar(&stabilization, "server-stabilization-time", 0, "how long a server is healthy before it votes")
	flags.Uint32Var(&quorum, "min-quorum", 0, "how many voters cleaning up leaves; 0: as many as formed the cluster")
	cmd.RunE = a.do(func(ctx context.Context, _ []string) error {
		want := &hostv1.Autopilot{}
		if flags.Changed("cleanup-dead-servers") {
			want.CleanupDeadServers = &cleanup
		}
		if flags.Changed("last-contact-threshold") {
			want.LastContactThreshold = durationpb.New(contact)
		}
		if flags.Changed("server-stabilization-time") {
			want.ServerStabilizationTime = durationpb.New(stabilization)
		}
		if flags.Changed("min-quorum") {
			want.MinQuorum = &quorum
		}
		if proto.Equal(want, &hostv1.Autopilot{}) {
			return &usageError{err: fmt.Errorf("what should change?"), command: cmd.CommandPath()}
		}
		client, err := a.api()
		if err != nil {
			return err
		}
		resp, err := client.Operator.SetAutopilot(ctx, connect.NewRequest(&hostv1.SetAutopilotRequest{Autopilot: want}))
		if err != nil {
			return err
		}
		return a.print(resp.Msg, func() error { return a.showAutopilot(resp.Msg.GetAutopilot()) })
	})
	return cmd
}

func (a *app) autopilotHealth() *cobra.Command {
	return &cobra.Command{
		Use: "health", Short: "Show how the servers are, and how many more may fail; exit code 1 where one is not well",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.Operator.AutopilotHealth(ctx, connect.NewRequest(&hostv1.AutopilotHealthRequest{}))
			if err != nil {
				return err
			}
			err = a.print(resp.Msg, func() error {
				if err := a.showPeers(resp.Msg.GetPeers()); err != nil {
					return err
				}
				if _, err := fmt.Fprintln(a.out); err != nil {
					return err
				}
				return a.say(fmt.Sprintf("%s may fail before the ledger stops", count(resp.Msg.GetFailureTolerance(), "more server")))
			})
			if err == nil && !resp.Msg.GetHealthy() {
				return silentExit(ExitError)
			}
			return err
		}),
	}
}
