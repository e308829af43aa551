package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) keyringCommand() *cobra.Command {
	return a.noun("keyring", "Keys that encrypt the agents' gossip",
		a.keyringList(), a.keyringAdd(), a.keyringUse(), a.keyringRemove())
}

// knownKeys is where the ids of keys are to be had.
const knownKeys = "pannier keyring list has the keys' ids"

func (a *app) keyringList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the keys by their ids, with how many agents have them and write with them",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.Members.ListKeys(ctx, connect.NewRequest(&hostv1.ListKeysRequest{}))
			if err != nil {
				return err
			}
			if problem := resp.Msg.GetProblem(); problem != "" {
				a.note("warning: %s", problem)
			}
			return a.print(resp.Msg, func() error {
				t := newTable("KEY", "AGENTS", "WRITE WITH IT")
				for _, k := range resp.Msg.GetKeys() {
					t.row(k.GetId(), fmt.Sprintf("%d of %d", k.GetAgents(), resp.Msg.GetAgents()), fmt.Sprintf("%d of %d", k.GetPrimary(), resp.Msg.GetAgents()))
				}
				return a.show(t)
			})
		}),
	}
}

// maxKeyFile is more than a key in base64 has.
const maxKeyFile = 1 << 10

func (a *app) keyringAdd() *cobra.Command {
	return &cobra.Command{
		Use: "add FILE", Short: "Give every agent a further key to read with; FILE has it in base64, - is standard input",
		Args: exactly("FILE"),
		RunE: a.do(func(ctx context.Context, args []string) error {
			key, err := readKey(args[0])
			if err != nil {
				return err
			}
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.Members.AddKey(ctx, connect.NewRequest(&hostv1.AddKeyRequest{Key: key}))
			if err != nil {
				return err
			}
			return a.print(resp.Msg, func() error {
				return a.say(fmt.Sprintf("key %s is there; when every agent has it: pannier keyring use %s", resp.Msg.GetId(), resp.Msg.GetId()))
			})
		}),
	}
}

// readKey reads a key from a file: not from the command line, which others can see.
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

func (a *app) keyringUse() *cobra.Command {
	return a.keyCommand("use ID", "Make every agent write with a key that all have", "every agent writes with key %s",
		func(ctx context.Context, id string) error {
			_, err := a.client.Members.UseKey(ctx, connect.NewRequest(&hostv1.UseKeyRequest{Id: id}))
			return err
		})
}

func (a *app) keyringRemove() *cobra.Command {
	return a.keyCommand("remove ID", "Take a key away that no agent writes with", "key %s is gone",
		func(ctx context.Context, id string) error {
			_, err := a.client.Members.RemoveKey(ctx, connect.NewRequest(&hostv1.RemoveKeyRequest{Id: id}))
			return err
		})
}

// keyCommand is one that does something with a key of an id.
func (a *app) keyCommand(use, short, done string, do func(ctx context.Context, id string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short,
		Args: exactly("ID"),
		RunE: a.do(func(ctx context.Context, args []string) error {
			if _, err := a.api(); err != nil {
				return err
			}
			if err := do(ctx, args[0]); err != nil {
				return hint(err, ExitNotFound, knownKeys)
			}
			return a.print(&hostv1.UseKeyResponse{}, func() error { return a.say(fmt.Sprintf(done, args[0])) })
		}),
	}
}
