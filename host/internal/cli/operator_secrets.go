package cli

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) secretsStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "List the keys that seal secrets in the ledger, and how much each seals",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.Secrets.GetSecretsStatus(ctx, connect.NewRequest(&hostv1.GetSecretsStatusRequest{}))
			if err != nil {
				return err
			}
			return a.print(resp.Msg, func() error { return a.showSecretsKeys(resp.Msg) })
		}),
	}
}

func (a *app) showSecretsKeys(s *hostv1.GetSecretsStatusResponse) error {
	t := newTable("KEY", "STATE", "SEALED", "ADDED", "HERE")
	state := "old"
	for _, k := range s.GetKeys() {
		if k.GetActive() {
			state = "active"
		}
		t.row(k.GetId(), state, k.GetSealed(), age(k.GetAddedAt()), yesNo(k.GetHere()))
		if k.GetActive() {
			state = "next"
		}
	}
	if err := a.show(t); err != nil || s.GetProblem() == "" {
		return err
	}
	return a.say(s.GetProblem())
}

func (a *app) secretsRotate() *cobra.Command {
	return &cobra.Command{
		Use: "rotate", Short: "Let a new key seal; what old keys seal is sealed anew in the background",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.Secrets.RotateSecretsKey(ctx, connect.NewRequest(&hostv1.RotateSecretsKeyRequest{}))
			if err != nil {
				return err
			}
			return a.print(resp.Msg, func() error {
				return a.say(fmt.Sprintf("the key %s seals from now on; the old one goes when nothing needs it (pannier operator secrets status). "+
					"Back up the servers' keys anew: a backup of the ledger is of no use without them", resp.Msg.GetId()))
			})
		}),
	}
}
