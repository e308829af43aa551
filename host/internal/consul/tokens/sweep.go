package tokens

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/sdk/identity"
)

// Bounds of a sweep, because tokens are derived at the same time.
const (
	revokePerSecond = 100
	revokeParallel  = 8
)

// ErrEndsByItself means that the secret of a token from a login is lost: the token cannot be revoked and has to expire.
var ErrEndsByItself = errors.New("its secret is lost, so it cannot be revoked and expires")

// Report is the result of a sweep.
type Report struct {
	// Swept are the tokens whose workload is gone, by workload.
	Swept []Swept
	// Problems are the Consuls that could not be listed. The ledger's own tokens were swept nevertheless.
	Problems []error
}

// Swept is a token whose workload is gone.
type Swept struct {
	Token  claim.Token
	Reason string // why it is revoked
	// Revoked is false on a dry run, and if the revocation failed; Err then explains why.
	Revoked bool
	Err     error
}

// Err joins the errors that another sweep may not have.
func (r Report) Err() error {
	errs := slices.Clone(r.Problems)
	for _, s := range r.Swept {
		if s.Err != nil && !errors.Is(s.Err, ErrEndsByItself) {
			errs = append(errs, fmt.Errorf("revoke the token %s of workload %q for service %q: %w", s.Token.ID, s.Token.Workload,
				s.Token.Service, s.Err))
		}
	}
	return errors.Join(errs...)
}

// Sweep revokes the tokens whose workload is gone: the ledger's tokens, and this cluster's tokens that a Consul has and
// the ledger has not. A dry run only reports them. It fails if the ledger fails or ctx ends; the report has the
// failures of single tokens and Consuls.
func (a *Authority) Sweep(ctx context.Context, dryRun bool) (Report, error) {
	var report Report
	// List the Consuls before reading the ledger: a token that is made in between has its record by then.
	listed, problems, err := a.list(ctx)
	if err != nil {
		return report, err
	}
	report.Problems = problems
	orphans, err := a.orphans(ctx, listed)
	if err != nil {
		return report, err
	}
	if !dryRun {
		a.sweep(ctx, orphans)
	}
	for _, o := range orphans {
		o.Token = a.withAccessor(o.Token)
		report.Swept = append(report.Swept, o.Swept)
	}
	return report, context.Cause(ctx)
}

// list asks every Consul for this cluster's tokens. A Consul that cannot be listed is missing in the result. That
// is no problem if tokens are issued by login and listing was not configured, because they expire.
func (a *Authority) list(ctx context.Context) (listed map[string][]identity.Token, problems []error, err error) {
	if len(a.Consuls) == 0 {
		return nil, nil, nil
	}
	cluster, err := a.clusterID(ctx)
	if err != nil {
		return nil, nil, err
	}
	listed = map[string][]identity.Token{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for name, consul := range a.Consuls {
		all.Go(func() {
			var found []identity.Token
			err := a.Identity(ctx, name, func(ctx context.Context, i identity.Identity) (err error) {
				found, err = i.List(ctx, consul, cluster)
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil && consul.AuthMethod != "" && status.Code(err) == codes.FailedPrecondition:
				return
			case err != nil:
				problems = append(problems, err)
				return
			}
			// Ignore other clusters' tokens, whatever a plugin lists.
			listed[name] = slices.DeleteFunc(found, func(t identity.Token) bool { return t.Subject.Cluster != cluster })
		})
	}
	all.Wait()
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return listed, problems, nil
}

// orphan is a token to be revoked.
type orphan struct {
	Swept
	noted bool // in the ledger
	// unanswered marks a login's token whose accessor the ledger does not know, although Consul could be listed.
	// So it does not exist, or it is in that list and is an orphan by itself.
	unanswered bool
}

// orphans compares Consul's tokens with the current ledger.
func (a *Authority) orphans(ctx context.Context, listed map[string][]identity.Token) (found []*orphan, err error) {
	known := map[string]bool{}             // ids and accessors
	awaited := map[identity.Subject]bool{} // of logins in progress
	err = a.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		all, err := tx.Tokens("")
		for _, t := range all {
			known[t.ID], known[t.Accessor] = true, true
			why, err := orphaned(tx, &t)
			if err != nil {
				return err
			}
			login := t.Accessor == "" && a.byLogin(t)
			switch _, seen := listed[t.Consul]; {
			case why != "":
				found = append(found, &orphan{Swept: Swept{Token: t, Reason: why}, noted: true, unanswered: login && seen})
			case login:
				awaited[purpose(t)] = true
			}
		}
		return err
	})
	if err != nil {
		return nil, ledgerError(err)
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		for _, t := range listed[name] {
			subject := t.Subject
			subject.Cluster = ""
			if known[t.Accessor] || awaited[subject] {
				continue
			}
			known[t.Accessor] = true // two consul blocks may lead to the same Consul
			found = append(found, &orphan{Swept: Swept{
				Token: claim.Token{
					ID: t.Accessor, Accessor: t.Accessor, Consul: name, Node: t.Subject.Node, Service: t.Subject.Service,
					Workload:  claim.WorkloadRef{Namespace: t.Subject.Namespace, ID: t.Subject.Workload},
					CreatedAt: t.CreatedAt, ExpiresAt: t.ExpiresAt,
				},
				Reason: fmt.Sprintf("Consul %q has it, but the ledger has not", name),
			}})
		}
	}
	return found, nil
}

// purpose says whom a token is for, within the cluster.
func purpose(t claim.Token) identity.Subject {
	return identity.Subject{Node: t.Node, Namespace: t.Workload.Namespace, Workload: t.Workload.ID, Service: t.Service}
}

// sweep revokes the tokens, several at a time, and removes the records of tokens that are gone.
func (a *Authority) sweep(ctx context.Context, orphans []*orphan) {
	var all errgroup.Group
	all.SetLimit(revokeParallel)
	for _, o := range orphans {
		all.Go(func() error {
			o.Revoked, o.Err = a.endOrphan(ctx, o)
			return nil
		})
	}
	_ = all.Wait() // the errors are in the orphans
	failpoint.Here("sweep", "revoked")
	gone := slices.DeleteFunc(slices.Clone(orphans), func(o *orphan) bool { return !o.Revoked || !o.noted })
	for part := range slices.Chunk(gone, command.MaxItems) {
		ids := make([]string, len(part))
		for i, o := range part {
			ids[i] = o.Token.ID
		}
		if _, err := cluster.Apply(ctx, a.Ledger, &command.DeleteTokens{IDs: ids}); err != nil {
			for _, o := range part {
				o.Err = fmt.Errorf("it is revoked, but its record could not be removed: %w", ledgerError(err))
			}
		}
	}
	a.tell(orphans)
}

func (a *Authority) endOrphan(ctx context.Context, o *orphan) (gone bool, err error) {
	if o.unanswered {
		a.doubt(o.Token.ID, false)
		return true, nil
	}
	unlock, err := a.tokens.Lock(ctx, o.Token.ID)
	if err != nil {
		return false, err
	}
	defer unlock()
	if err := a.revokes.Wait(ctx); err != nil {
		return false, err
	}
	gone, err = a.end(ctx, o.Token, "")
	if gone {
		a.doubt(o.Token.ID, false) // if it is made from now on, Consul's list will have it
	}
	if err != nil || gone {
		return gone, err
	}
	if ends := endsAt(o.Token); !ends.IsZero() {
		return false, fmt.Errorf("%w at %s", ErrEndsByItself, ends.UTC().Format(time.RFC3339))
	}
	return false, fmt.Errorf(
		"it was issued by login without an expiry and its secret is lost: consul acl token delete -accessor-id %s",
		o.Token.Accessor)
}

// tell reports the tokens that had to be revoked; normally they are revoked earlier.
func (a *Authority) tell(orphans []*orphan) {
	revoked := 0
	for _, o := range orphans {
		if !o.Revoked {
			continue
		}
		revoked++
		a.Events.Publish(events.Event{
			Topic: events.TopicWorkload, Type: "token-revoked", Subject: o.Token.Workload.String(),
			Message: fmt.Sprintf("the token for service %q was revoked: %s", o.Token.Service, o.Reason),
		})
	}
	if revoked > 0 {
		a.Log.Info("tokens whose workload is gone were revoked", "tokens", revoked)
	}
}
