package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) keyringCommand() *cobra.Command {
	return a.Noun("keyring", "Keys that encrypt the agents' gossip",
		&cobra.Command{
			Use: "list", Short: "List the keys by id, with how many agents have and use each",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
				resp, err := client.Members.ListKeys(ctx, &hostv1.ListKeysRequest{})
				return a.Print(resp, err, func() {
					if problem := resp.GetProblem(); problem != "" {
						a.Note("warning: %s", problem)
					}
					t := NewTable("KEY", "AGENTS", "WRITE WITH IT")
					for _, k := range resp.GetKeys() {
						t.Row(k.GetId(), fmt.Sprintf("%d of %d", k.GetAgents(), resp.GetAgents()),
							fmt.Sprintf("%d of %d", k.GetPrimary(), resp.GetAgents()))
					}
					a.Show(t)
				})
			}),
		},
		a.keyringAdd(),
		&cobra.Command{
			Use: "use ID", Short: "Make every agent encrypt with a key that all have",
			Example: "pannier keyring use 0123456789abcdef",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
				resp, err := client.Members.UseKey(ctx, &hostv1.UseKeyRequest{Id: args[0]})
				return a.Done(resp, err, "every agent encrypts with key %s", args[0])
			}),
		},
		&cobra.Command{
			Use: "remove ID", Short: "Remove a key that no agent encrypts with",
			Example: "pannier keyring remove 0123456789abcdef",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
				resp, err := client.Members.RemoveKey(ctx, &hostv1.RemoveKeyRequest{Id: args[0]})
				return a.Done(resp, err, "key %s is removed", args[0])
			}),
		})
}

// maxKeyFile is more bytes than a key in base64 has.
const maxKeyFile = 1 << 10

func (a *App) keyringAdd() *cobra.Command {
	return &cobra.Command{
		Use: "add FILE", Short: "Give every agent another key to decrypt with",
		Long: `Give every agent another key to decrypt with. FILE has 16, 24 or 32 bytes in base64, such as
of head -c 32 /dev/urandom | base64; - is standard input.`,
		Example: "pannier keyring add gossip.key.new",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			key, err := readFile(args[0], maxKeyFile) // because others can see command lines
			if err != nil {
				return fmt.Errorf("read the key: %w", err)
			}
			resp, err := client.Members.AddKey(ctx, &hostv1.AddKeyRequest{Key: strings.TrimSpace(key)})
			return a.Done(resp, err, "key %s is added; when every agent has it: pannier keyring use %s", resp.GetId(),
				resp.GetId())
		}),
	}
}
