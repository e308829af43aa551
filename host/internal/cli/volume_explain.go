package cli

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/cluster/claim"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) volumeExplain() *cobra.Command {
	return &cobra.Command{
		Use: "explain ID", Short: "Say who holds a volume, what each claim waits for, and what to do about it",
		Args: exactly("ID"), ValidArgsFunction: a.completeIDs(volumeIDs),
		RunE: a.do(func(ctx context.Context, args []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.Volumes.ExplainVolume(ctx, connect.NewRequest(&hostv1.ExplainVolumeRequest{
				Namespace: a.namespaceOr(claim.DefaultNamespace), Id: args[0],
			}))
			if err != nil {
				return hintVolume(err)
			}
			return a.print(resp.Msg, func() error { return a.explainVolume(args[0], resp.Msg) })
		}),
	}
}

func (a *app) explainVolume(id string, m *hostv1.ExplainVolumeResponse) error {
	if err := a.say(fmt.Sprintf("volume %q: %s", id, m.GetSummary())); err != nil {
		return err
	}
	for _, c := range m.GetClaims() {
		t := newTable()
		t.row("Workload", c.GetClaim().GetWorkload())
		t.row("Claim", fmt.Sprintf("%s, token %d", c.GetClaim().GetMode(), c.GetClaim().GetIndex()))
		t.row("State", claimState(c.GetClaim().GetState()))
		t.row("Since", since(c.GetSince()))
		node := nodeStatus(c.GetNodeStatus())
		node.text = c.GetClaim().GetNode() + ", " + node.text
		if c.GetLastHeard() != nil {
			node.text += ", heard from " + since(c.GetLastHeard())
		}
		t.row("Node", node)
		if c.GetNodeStatus() == string(claim.NodeDisconnected) {
			t.row("Let go of", ahead(c.GetLetGoAt()))
		}
		t.row("Waits for", c.GetWaitsFor())
		if c.GetTries() > 0 {
			t.row("Tries", c.GetTries())
		}
		if c.GetLastError() != "" {
			t.row("Last error", cell{c.GetLastError(), red})
		}
		if c.GetNextTryAt() != nil {
			t.row("Next try", ahead(c.GetNextTryAt()))
		}
		t.row("Next", c.GetNext())
		if c.GetCommand() != "" {
			t.row("Run", cell{c.GetCommand(), bold})
		}
		if err := a.section(t); err != nil {
			return err
		}
	}
	return nil
}

// claimState is a cell for how far a claim is on its way out.
func claimState(state string) cell {
	if state == string(claim.Taken) {
		return cell{state, green}
	}
	return cell{state, yellow}
}

// since writes how long ago a time was, as a sentence has it.
func since(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return span(time.Since(at.AsTime())) + " ago"
}
