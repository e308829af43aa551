package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func tokenNoun() noun {
	read, sweep := &hostv1.ReadOptions{}, &hostv1.SweepTokensRequest{}
	var workload string
	return nounOf("token", "Consul tokens of workloads' services", []verb{
		{
			use: "list", short: "List the Consul tokens of workloads' services", example: "-workload web",
			long: `List the Consul tokens of workloads' services, by accessor, including those that Consul has
not confirmed yet. ORPHAN says that the workload is gone and the next sweep revokes the
token.`,
			flags: func(f *pflag.FlagSet) {
				f.StringVar(&workload, "workload", "", "only those of the workload with this `ID`")
				staleFlag(f, read)
			},
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Tokens.ListTokens(ctx, &hostv1.ListTokensRequest{
					Namespace: c.namespaceOr("*"), Workload: workload, Read: read,
				})
				return list(c.Printer, resp, err, resp.GetTokens(), tokenColumns)
			},
		},
		{
			use: "inspect SPEC|ID", short: "Ask Consul about the tokens of a workload's services, now", example: "web",
			long: `Ask this node's Consul agent about the tokens of the services of a workload that runs on this
node, now. The agent itself looks every five minutes. The exit code is 1 unless all are valid.`,
			run: func(ctx context.Context, c *call) error {
				namespace, id, err := c.specOrID()
				if err != nil {
					return err
				}
				resp, err := c.Workloads.GetWorkload(ctx,
					&hostv1.GetWorkloadRequest{Namespace: namespace, Id: id, Tokens: true})
				tokens := resp.GetTokens()
				err = list(c.Printer, &hostv1.GetWorkloadResponse{Tokens: tokens}, err, tokens, inspectedColumns)
				return cmp.Or(err, inspectionError(tokens))
			},
		},
		{
			use: "sweep", short: "Revoke the tokens whose workload is gone, now", example: "-dry-run",
			long: `Revoke the tokens whose workload is gone, now: those in the ledger, and
those of this cluster that only Consul has. The leader does so periodically. The exit code is
1 when a token could not be revoked or a Consul not be asked; it is retried automatically.`,
			flags: func(f *pflag.FlagSet) { f.BoolVar(&sweep.DryRun, "dry-run", false, "only show what would be revoked") },
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Tokens.SweepTokens(ctx, sweep)
				err = list(c.Printer, resp, err, resp.GetTokens(), sweptColumns(sweep.DryRun))
				return cmp.Or(err, sweepError(c, resp, sweep.DryRun))
			},
		},
	})
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

// sweepError returns what a sweep could not do.
func sweepError(c *call, m *hostv1.SweepTokensResponse, dryRun bool) error {
	for _, problem := range m.GetProblems() {
		c.Note("warning: not all tokens were seen: %s", problem)
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

var tokenColumns = columns[*hostv1.Token]{
	[]string{"WORKLOAD", "NAMESPACE", "SERVICE", "NODE", "CONSUL", "ACCESSOR", "AGE", "EXPIRES", "ORPHAN"},
	func(t *Table, k *hostv1.Token) {
		orphan := Cell{"no", ""}
		if k.GetOrphan() {
			orphan = Cell{"yes", Yellow}
		}
		t.Row(k.GetWorkload(), k.GetNamespace(), k.GetService(), k.GetNode(), k.GetConsul(), accessor(k),
			age(k.GetCreatedAt()), ahead(k.GetExpiresAt()), orphan)
	},
	"no tokens; a service with a connect block is given one when its workload starts",
}

var inspectedColumns = columns[*hostv1.InspectedToken]{
	[]string{"SERVICE", "CONSUL", "ACCESSOR", "EXPIRES", "STATE", "ERROR"},
	func(t *Table, k *hostv1.InspectedToken) {
		t.Row(k.GetToken().GetService(), k.GetToken().GetConsul(), k.GetToken().GetAccessor(),
			ahead(k.GetToken().GetExpiresAt()), stateCell(k.GetState()), k.GetError())
	},
	"no service of the workload has a token; one with a connect block has",
}

func sweptColumns(dryRun bool) columns[*hostv1.SweptToken] {
	return columns[*hostv1.SweptToken]{
		[]string{"WORKLOAD", "NAMESPACE", "SERVICE", "NODE", "CONSUL", "ACCESSOR", "REVOKED", "REASON"},
		func(t *Table, s *hostv1.SweptToken) {
			k, revoked, reason := s.GetToken(), yesOr(s.GetRevoked(), Red), s.GetReason()
			if dryRun {
				revoked = Cell{"not yet", Yellow}
			}
			if s.GetError() != "" {
				reason += "; " + s.GetError()
			}
			t.Row(k.GetWorkload(), k.GetNamespace(), k.GetService(), k.GetNode(), k.GetConsul(), accessor(k), revoked, reason)
		},
		"nothing to revoke: every token's workload exists",
	}
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
