package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pannier/pannier/host/internal/config/doctor"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// oneCluster fails if the agent's pool holds more than one cluster. Callers who may not list its members pass.
func oneCluster(ctx context.Context, c *call) error {
	resp, err := c.Members.ListMembers(ctx, &hostv1.ListMembersRequest{})
	if err != nil {
		return nil //nolint:nilerr // what the caller asked for was answered
	}
	return doctor.OneCluster(resp.GetMembers())
}

func serverNoun() noun {
	leave := &hostv1.ForceLeaveRequest{}
	return nounOf("server", "Agents that gossip with this one", []verb{
		{
			use: "members", short: "List the agents, servers and nodes, that this one knows by gossip",
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Members.ListMembers(ctx, &hostv1.ListMembersRequest{})
				t := NewTable("NAME", "ROLE", "STATUS", "LEADER", "ADDRESS", "RPC ADDRESS", "DATACENTER", "VERSION")
				for _, m := range resp.GetMembers() {
					leader := ""
					if m.GetLeader() {
						leader = "yes"
					}
					t.Row(m.GetName(), m.GetRole(), stateCell(m.GetStatus()), leader, m.GetAddress(), m.GetRpcAddress(),
						m.GetDatacenter(), m.GetVersion())
				}
				return errors.Join(c.Tables(resp, err, t), doctor.OneCluster(resp.GetMembers()))
			},
		},
		{
			use: "join ADDRESS...", short: "Join other agents at their gossip address (host or host:port)",
			example: "192.0.2.11",
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Members.JoinMembers(ctx, &hostv1.JoinMembersRequest{Addresses: c.args})
				return c.Done(resp, err, "%d of %d answered; pannier server members lists all", resp.GetJoined(), len(c.args))
			},
		},
		{
			use: "force-leave NAME", short: "Mark a failed agent as left", example: "-prune server-3",
			flags: func(f *pflag.FlagSet) { f.BoolVar(&leave.Prune, "prune", false, "forget it at once") },
			run: order("agent %q has left", func(ctx context.Context, c *call) (any, error) {
				leave.Name = c.args[0]
				return c.Members.ForceLeave(ctx, leave)
			}),
		},
	})
}

// maxKeyFile is more bytes than a key in base64 has.
const maxKeyFile = 1 << 10

func keyringNoun() noun {
	const id = "0123456789abcdef"
	return nounOf("keyring", "Keys that encrypt the agents' gossip", []verb{
		{
			use: "list", short: "List the keys by id, with how many agents have and use each",
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Members.ListKeys(ctx, &hostv1.ListKeysRequest{})
				return c.Print(resp, err, func() {
					if problem := resp.GetProblem(); problem != "" {
						c.Note("warning: %s", problem)
					}
					t := NewTable("KEY", "AGENTS", "WRITE WITH IT")
					for _, k := range resp.GetKeys() {
						t.Row(k.GetId(), fmt.Sprintf("%d of %d", k.GetAgents(), resp.GetAgents()),
							fmt.Sprintf("%d of %d", k.GetPrimary(), resp.GetAgents()))
					}
					c.Show(t)
				})
			},
		},
		{
			use: "add FILE", short: "Give every agent another key to decrypt with", example: "gossip.key.new",
			long: `Give every agent another key to decrypt with. FILE has 16, 24 or 32 bytes in base64, such as
of head -c 32 /dev/urandom | base64; - is standard input.`,
			run: func(ctx context.Context, c *call) error {
				key, err := readFile(c.args[0], maxKeyFile) // because others can see command lines
				if err != nil {
					return fmt.Errorf("read the key: %w", err)
				}
				resp, err := c.Members.AddKey(ctx, &hostv1.AddKeyRequest{Key: strings.TrimSpace(key)})
				return c.Done(resp, err, "key %s is added; when every agent has it: pannier keyring use %[1]s", resp.GetId())
			},
		},
		{
			use: "use ID", short: "Make every agent encrypt with a key that all have", example: id,
			run: order("every agent encrypts with key %s", func(ctx context.Context, c *call) (any, error) {
				return c.Members.UseKey(ctx, &hostv1.UseKeyRequest{Id: c.args[0]})
			}),
		},
		{
			use: "remove ID", short: "Remove a key that no agent encrypts with", example: id,
			run: order("key %s is removed", func(ctx context.Context, c *call) (any, error) {
				return c.Members.RemoveKey(ctx, &hostv1.RemoveKeyRequest{Id: c.args[0]})
			}),
		},
	})
}
