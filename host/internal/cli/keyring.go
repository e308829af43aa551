package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) keyringCommand() *cobra.Command {
	return a.Noun("keyring", "Keys that encrypt the agents' gossip",
		a.keyringList(), a.keyringAdd(), a.keyringUse(), a.keyringRemove())
}

// knownKeys is the advice for an unknown key.
const knownKeys = "pannier keyring list has the keys' ids"

func (a *App) keyringList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the keys by id, with how many agents have and use each",
		Example: "pannier keyring list",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.Members.ListKeys(ctx, &hostv1.ListKeysRequest{})
			if err != nil {
				return err
			}
			if problem := resp.GetProblem(); problem != "" {
				a.Note("warning: %s", problem)
			}
			return a.Print(resp, func() error {
				t := NewTable("KEY", "AGENTS", "WRITE WITH IT")
				for _, k := range resp.GetKeys() {
					t.Row(k.GetId(), fmt.Sprintf("%d of %d", k.GetAgents(), resp.GetAgents()),
						fmt.Sprintf("%d of %d", k.GetPrimary(), resp.GetAgents()))
				}
				return a.Show(t)
			})
		}),
	}
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
			key, err := readKey(args[0])
			if err != nil {
				return err
			}
			resp, err := client.Members.AddKey(ctx, &hostv1.AddKeyRequest{Key: key})
			if err != nil {
				return err
			}
			return a.Done(resp, "key %s is added; when every agent has it: pannier keyring use %s", resp.GetId(), resp.GetId())
		}),
	}
}

// readKey reads a key from a file, because others can see command lines.
func readKey(path string) (string, error) {
	in := os.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("read the key: %w", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxKeyFile))
	if err != nil {
		return "", fmt.Errorf("read the key: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

func (a *App) keyringUse() *cobra.Command {
	return a.keyCommand("use ID", "Make every agent encrypt with a key that all have", "every agent encrypts with key %s",
		func(ctx context.Context, client *api.Client, id string) error {
			_, err := client.Members.UseKey(ctx, &hostv1.UseKeyRequest{Id: id})
			return err
		})
}

func (a *App) keyringRemove() *cobra.Command {
	return a.keyCommand("remove ID", "Remove a key that no agent encrypts with", "key %s is removed",
		func(ctx context.Context, client *api.Client, id string) error {
			_, err := client.Members.RemoveKey(ctx, &hostv1.RemoveKeyRequest{Id: id})
			return err
		})
}

// keyCommand returns a command that takes a key's id.
func (a *App) keyCommand(use, short, done string,
	do func(ctx context.Context, client *api.Client, id string) error,
) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short,
		Example: "pannier keyring " + strings.Fields(use)[0] + " 0123456789abcdef",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			if err := do(ctx, client, args[0]); err != nil {
				return hint(err, ExitNotFound, knownKeys)
			}
			return a.Done(&hostv1.UseKeyResponse{}, done, args[0])
		}),
	}
}
