package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) operatorCommand() *cobra.Command {
	return a.Noun("operator", "The cluster's servers",
		a.Noun("raft", "Servers that take part in raft",
			&cobra.Command{
				Use: "list-peers", Short: "List the servers that take part in raft",
				RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
					resp, err := client.Operator.ListPeers(ctx, &hostv1.ListPeersRequest{})
					return a.Print(resp, err, func() { a.showPeers(resp.GetPeers()) })
				}),
			},
			&cobra.Command{
				Use: "transfer-leadership [NAME]", Short: "Make another server the leader: NAME, or one that is up to date",
				Example: "pannier operator raft transfer-leadership server-2",
				RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
					req := &hostv1.TransferLeadershipRequest{}
					if len(args) > 0 {
						req.Name = args[0]
					}
					resp, err := client.Operator.TransferLeadership(ctx, req)
					return a.Print(resp, err, func() {
						if resp.GetLeader() == "" {
							a.Say("leadership is transferred; pannier operator raft list-peers shows to whom")
							return
						}
						a.Say("server %q leads", resp.GetLeader())
					})
				}),
			},
			a.raftRemove()),
		a.Noun("autopilot", "Automatic maintenance of servers by the leader",
			&cobra.Command{
				Use: "get", Short: "Show the settings of autopilot",
				RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
					resp, err := client.Operator.GetAutopilot(ctx, &hostv1.GetAutopilotRequest{})
					return a.Print(resp, err, func() { a.showAutopilot(resp.GetAutopilot()) })
				}),
			},
			a.autopilotSet(), a.autopilotHealth()),
		a.Noun("snapshot", "Copies of the ledger", a.snapshotSave(), a.snapshotRestore(), a.snapshotInspect()),
		a.Noun("secrets", "The keys that encrypt secrets in the ledger", a.secretsStatus(), a.secretsRotate()))
}

func (a *App) showPeers(peers []*hostv1.RaftPeer) {
	t := NewTable("NAME", "ADDRESS", "STATE", "VOTER", "HEALTH", "LAST CONTACT", "LAST INDEX", "VERSION")
	for _, p := range peers {
		state, contact := "follower", ""
		if p.GetLeader() {
			state = "leader"
		}
		if p.GetLastContact() != nil {
			contact = p.GetLastContact().AsDuration().Round(time.Millisecond).String()
		}
		t.Row(p.GetName(), p.GetAddress(), state, yesNo(p.GetVoter()), healthy(p.GetHealthy()), contact, p.GetLastIndex(),
			p.GetVersion())
	}
	a.Show(t)
}

func (a *App) raftRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove-peer NAME", Short: "Remove a server from raft that is gone for good",
		Long: `Remove a server from raft that is gone for good. One that still runs leaves by itself:
pannier agent leave, on it.`,
		Example: "pannier operator raft remove-peer server-3",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.Operator.RemovePeer(ctx, &hostv1.RemovePeerRequest{Name: args[0]})
			return a.Done(resp, err, "server %q is removed from raft", args[0])
		}),
	}
}

func (a *App) showAutopilot(p *hostv1.Autopilot) {
	t := NewTable()
	t.Row("Cleans up dead servers", yesNo(p.GetCleanupDeadServers()))
	t.Row("Healthy with a contact within", p.GetLastContactThreshold().AsDuration())
	t.Row("Votes when healthy for", p.GetServerStabilizationTime().AsDuration())
	quorum := fmt.Sprint(p.GetMinQuorum())
	if p.GetMinQuorum() == 0 {
		quorum = "as many as formed the cluster"
	}
	t.Row("Leaves voters at least", quorum)
	a.Show(t)
}

func (a *App) autopilotSet() *cobra.Command {
	var cleanup bool
	var contact, stabilization time.Duration
	var quorum uint32
	cmd := &cobra.Command{
		Use: "set", Short: "Change the settings of autopilot, for all servers",
		Long: `Change the settings of autopilot, for all servers. From the first change on the ledger has
them, and the autopilot blocks of configurations no longer count.`,
		Example: "pannier operator autopilot set -last-contact-threshold 500ms",
	}
	flags := cmd.Flags()
	flags.BoolVar(&cleanup, "cleanup-dead-servers", true, "remove servers that do not answer")
	flags.DurationVar(&contact, "last-contact-threshold", 0, "how long a healthy server may be silent")
	flags.DurationVar(&stabilization, "server-stabilization-time", 0, "how long a server is healthy before it votes")
	flags.Uint32Var(&quorum, "min-quorum", 0, "the least number of voters to keep; 0: as many as formed the cluster")
	cmd.RunE = a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
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
			return Usage("give at least one setting to change")
		}
		resp, err := client.Operator.SetAutopilot(ctx, &hostv1.SetAutopilotRequest{Autopilot: want})
		return a.Print(resp, err, func() { a.showAutopilot(resp.GetAutopilot()) })
	})
	return cmd
}

func (a *App) autopilotHealth() *cobra.Command {
	return &cobra.Command{
		Use: "health", Short: "Show the health of the servers, and how many more may fail",
		Long: `Show the health of the servers, and how many more may fail. The exit code is 1 when one is
unhealthy.`,
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.Operator.AutopilotHealth(ctx, &hostv1.AutopilotHealthRequest{})
			err = a.Print(resp, err, func() {
				a.showPeers(resp.GetPeers())
				a.heading("")
				a.Say("%s may fail before the ledger stops", escape.Count(resp.GetFailureTolerance(), "more server"))
			})
			if err == nil && !resp.GetHealthy() {
				return silentExit(ExitError)
			}
			return err
		}),
	}
}

func (a *App) secretsStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "List the keys that encrypt secrets in the ledger",
		Long: `List the keys that encrypt secrets in the ledger, how many records need each, and whether
the leader has it.`,
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.Secrets.GetSecretsStatus(ctx, &hostv1.GetSecretsStatusRequest{})
			return a.Print(resp, err, func() { a.showSecretsKeys(resp) })
		}),
	}
}

func (a *App) showSecretsKeys(s *hostv1.GetSecretsStatusResponse) {
	t := NewTable("KEY", "STATE", "SEALED", "ADDED", "HERE")
	state := "old"
	for _, k := range s.GetKeys() {
		if k.GetActive() {
			state = "active"
		}
		t.Row(k.GetId(), state, k.GetSealed(), age(k.GetAddedAt()), yesNo(k.GetHere()))
		if k.GetActive() {
			state = "next"
		}
	}
	a.Show(t)
	if s.GetProblem() != "" {
		a.Say("%s", s.GetProblem())
	}
}

func (a *App) secretsRotate() *cobra.Command {
	return &cobra.Command{
		Use: "rotate", Short: "Rotate the key and re-encrypt secrets",
		Long: `Rotate the key and re-encrypt secrets. Every server gets the new key, which is used from
then on; secrets are re-encrypted in the background, and then the old key is removed.
Refused while a server does not answer.`,
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.Secrets.RotateSecretsKey(ctx, &hostv1.RotateSecretsKeyRequest{})
			return a.Print(resp, err, func() {
				a.Say(
					"secrets are encrypted with key %s from now on; the old key is removed when nothing needs it "+
						"(pannier operator secrets status). Back up the servers' keys again: a backup of the ledger is of no use without them", resp.GetId())
			})
		}),
	}
}

func (a *App) systemCommand() *cobra.Command {
	return a.Noun("system", "Maintenance of the ledger", a.systemGC())
}

func (a *App) systemGC() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: "gc", Short: "Collect garbage now",
		Long: `Collect garbage now: claims of workloads that have ended,
ended workloads, drivers that no node has, nodes that are down and hold nothing, expired
ACL tokens. The leader does so periodically (gc in the agent's configuration); what is
not old enough stays.`,
		Example: "pannier system gc -dry-run",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.System.CollectGarbage(ctx, &hostv1.CollectGarbageRequest{DryRun: dryRun})
			return a.Print(resp, err, func() {
				t := NewTable("KIND", "NAMESPACE", "ID", "SINCE", "REASON")
				for _, g := range resp.GetGarbage() {
					t.Row(g.GetKind(), g.GetNamespace(), g.GetId(), since(g.GetSince()), g.GetReason())
				}
				a.List(t, "nothing to collect")
			})
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would be removed")
	return cmd
}
