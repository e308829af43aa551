package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) tokenCommand() *cobra.Command {
	return a.Noun("token", "Consul tokens of workloads' services",
		a.tokenList(), a.tokenInspect(), a.tokenSweep())
}

func (a *App) tokenList() *cobra.Command {
	var workload string
	var read hostv1.ReadOptions
	cmd := &cobra.Command{
		Use: "list", Short: "List the Consul tokens of workloads' services",
		Long: `List the Consul tokens of workloads' services, by accessor, including those that Consul has
not confirmed yet. ORPHAN says that the workload is gone and the next sweep revokes the
token.`,
		Example: "pannier token list -workload web",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.Tokens.ListTokens(ctx, &hostv1.ListTokensRequest{
				Namespace: a.namespaceOr("*"), Workload: workload, Read: &read,
			})
			return a.Print(resp, err, func() { a.showTokens(resp.GetTokens()) })
		}),
	}
	cmd.Flags().StringVar(&workload, "workload", "", "only those of the workload with this `ID`")
	staleFlag(cmd, &read)
	return cmd
}

func (a *App) tokenInspect() *cobra.Command {
	return &cobra.Command{
		Use: "inspect SPEC|ID", Short: "Ask Consul about the tokens of a workload's services, now",
		Long: `Ask this node's Consul agent about the tokens of the services of a workload that runs on this
node, now. The agent itself looks every five minutes. The exit code is 1 unless all are valid.`,
		Example: "pannier token inspect web",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			namespace, id, err := a.specOrID(args[0])
			if err != nil {
				return err
			}
			resp, err := client.Workloads.GetWorkload(ctx,
				&hostv1.GetWorkloadRequest{Namespace: namespace, Id: id, Tokens: true})
			tokens := resp.GetTokens()
			err = a.Print(&hostv1.GetWorkloadResponse{Tokens: tokens}, err, func() { a.showInspected(tokens) })
			return cmp.Or(err, inspectionError(tokens))
		}),
	}
}

// inspectionError is the error if a token is not valid.
func inspectionError(tokens []*hostv1.InspectedToken) error {
	is := func(state string) bool {
		return slices.ContainsFunc(tokens, func(t *hostv1.InspectedToken) bool { return t.GetState() == state })
	}
	switch {
	case is("gone"):
		return Hinted(errors.New("a token is not known to Consul"),
			"that of a running workload is replaced within five minutes; pannier workload status says if that fails")
	case is("unknown"):
		return errors.New("a token could not be looked up: Consul does not answer")
	case is("none"):
		return errors.New("a service has no token yet, or Consul has ACLs disabled")
	}
	return nil
}

func (a *App) tokenSweep() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: "sweep", Short: "Revoke the tokens whose workload is gone, now",
		Long: `Revoke the tokens whose workload is gone, now: those in the ledger, and
those of this cluster that only Consul has. The leader does so periodically. The exit code is
1 when a token could not be revoked or a Consul not be asked; it is retried automatically.`,
		Example: "pannier token sweep -dry-run",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.Tokens.SweepTokens(ctx, &hostv1.SweepTokensRequest{DryRun: dryRun})
			err = a.Print(resp, err, func() { a.showSwept(resp.GetTokens(), dryRun) })
			return cmp.Or(err, a.sweepError(resp, dryRun))
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would be revoked")
	return cmd
}

// sweepError returns what a sweep could not do.
func (a *App) sweepError(m *hostv1.SweepTokensResponse, dryRun bool) error {
	for _, problem := range m.GetProblems() {
		a.Note("warning: not all tokens were seen: %s", problem)
	}
	for _, t := range m.GetTokens() {
		if !dryRun && !t.GetRevoked() {
			return Hinted(errors.New("not every token is revoked"),
				"the rest is retried automatically; pannier token list shows it")
		}
	}
	if len(m.GetProblems()) > 0 {
		return Hinted(errors.New("the sweep did not see every Consul"),
			"it is repeated automatically; see the warnings, and pannier plugin status")
	}
	return nil
}

func (a *App) showTokens(tokens []*hostv1.Token) {
	t := NewTable("WORKLOAD", "NAMESPACE", "SERVICE", "NODE", "CONSUL", "ACCESSOR", "AGE", "EXPIRES", "ORPHAN")
	for _, k := range tokens {
		orphan := Cell{"no", ""}
		if k.GetOrphan() {
			orphan = Cell{"yes", Yellow}
		}
		t.Row(k.GetWorkload(), k.GetNamespace(), k.GetService(), k.GetNode(), k.GetConsul(), accessor(k),
			age(k.GetCreatedAt()), ahead(k.GetExpiresAt()), orphan)
	}
	a.List(t, "no tokens; a service with a connect block is given one when its workload starts")
}

func (a *App) showInspected(tokens []*hostv1.InspectedToken) {
	t := NewTable("SERVICE", "CONSUL", "ACCESSOR", "EXPIRES", "STATE", "ERROR")
	for _, k := range tokens {
		state := Cell{k.GetState(), Red}
		switch k.GetState() {
		case "valid":
			state.Color = Green
		case "none", "unknown":
			state.Color = Yellow
		}
		t.Row(k.GetToken().GetService(), k.GetToken().GetConsul(), k.GetToken().GetAccessor(),
			ahead(k.GetToken().GetExpiresAt()), state, k.GetError())
	}
	a.List(t, "no service of the workload has a token; one with a connect block has")
}

func (a *App) showSwept(swept []*hostv1.SweptToken, dryRun bool) {
	t := NewTable("WORKLOAD", "NAMESPACE", "SERVICE", "NODE", "CONSUL", "ACCESSOR", "REVOKED", "REASON")
	for _, s := range swept {
		k, revoked, reason := s.GetToken(), Cell{"yes", Green}, s.GetReason()
		switch {
		case dryRun:
			revoked = Cell{"not yet", Yellow}
		case !s.GetRevoked():
			revoked = Cell{"no", Red}
		}
		if s.GetError() != "" {
			reason += "; " + s.GetError()
		}
		t.Row(k.GetWorkload(), k.GetNamespace(), k.GetService(), k.GetNode(), k.GetConsul(), accessor(k), revoked, reason)
	}
	a.List(t, "nothing to revoke: every token's workload exists")
}

// accessor returns a token's accessor in Consul. A minted token's is its id in the ledger, and
// for a login without an answer yet only that id is known.
func accessor(t *hostv1.Token) string { return cmp.Or(t.GetAccessor(), t.GetId()) }

// ahead formats how long it is until a time, in its largest unit.
func ahead(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return "in " + span(time.Until(at.AsTime()))
}
