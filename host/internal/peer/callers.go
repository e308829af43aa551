package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/metadata"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/peer/transport"
)

// The metadata that carry for whom a node makes a call (onbehalf.Caller).
const (
	tokenKey = "caller-token-bin"
	grantKey = "caller-grant-bin"
)

// Callers decide whether a caller of a node may have the node do something, and write that to the audit log
// (apiserver.Callers). A refusal is an error with a code that says so; errcode.Unavailable: not decided yet.
type Callers interface {
	// MayStart checks the start of a workload. accessor is the caller's token's; empty: it has none.
	MayStart(ctx context.Context, by Asker, w Start) (accessor string, err error)
	// MayStop checks the stop of a workload, to replace it.
	MayStop(ctx context.Context, by Asker, ref claim.WorkloadRef) error
	// MayUse is MayStart for a look at a volume that the workload is going to use. Only a refusal is audited.
	MayUse(ctx context.Context, by Asker, ref claim.VolumeRef) error
}

// Asker is a node, and for whom it makes a call.
type Asker struct {
	Node transport.Peer
	// Token is the secret of the caller's token; empty: the caller had none.
	Token string
	// Accessor is the caller's token's in the leader's own statement, if Granted.
	Accessor string
	Granted  bool
}

// Start is what a caller wants to start.
type Start struct {
	Ref      claim.WorkloadRef
	Volumes  []claim.VolumeRef
	Services []string // those that get an identity
	After    []claim.WorkloadRef
}

// checked reports whether ACLs are on.
func (n caller) checked() bool { return n.leader.Callers != nil }

// allowance is what a call's caller was allowed.
type allowance struct {
	accessor string
	start    bool
}

// credentials reads from a call's metadata for whom it is made.
func credentials(ctx context.Context) (token string, grant []byte) {
	if v := metadata.ValueFromIncomingContext(ctx, tokenKey); len(v) == 1 {
		token = v[0]
	}
	if v := metadata.ValueFromIncomingContext(ctx, grantKey); len(v) == 1 {
		grant = []byte(v[0])
	}
	return token, grant
}

// asker returns for whom the node makes the call. A grant counts for the runs that it was given for: those of this node
// that wait and that of selects.
func (n caller) asker(ctx context.Context, of func(w claim.Workload) bool) (Asker, error) {
	by := Asker{Node: n.Peer, Token: n.token}
	if by.Token != "" || len(n.grant) == 0 {
		return by, nil
	}
	there, err := get(ctx, n.leader.Ledger.Read, (*state.ReadTx).WorkloadsOn, n.Name)
	if err != nil {
		return by, err
	}
	for _, w := range there {
		if w.Status != claim.Waiting || !of(w) {
			continue
		}
		if by.Accessor, by.Granted = n.leader.granted(n.grant, n.Name, w.Ref, w.RunID); by.Granted {
			return by, nil
		}
	}
	return by, nil
}

// mayStart checks whether the caller may start a workload on this node, or have it wait. What the workload has in the
// ledger already may be repeated without a caller, as after a restart of the agent.
func (n caller) mayStart(ctx context.Context, w Start, run string,
	has func(tx *state.ReadTx, standing claim.Workload) (bool, error),
) error {
	if !n.checked() {
		return nil
	}
	repeated := false
	err := n.leader.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		standing, err := tx.Workload(w.Ref)
		switch {
		case errors.Is(err, claim.ErrWorkloadNotFound):
			return nil
		case err == nil && standing.Node == n.Name:
			repeated, err = has(tx, standing)
		}
		return err
	})
	if err != nil || repeated {
		return err
	}
	by, err := n.asker(ctx, func(waiting claim.Workload) bool { return waiting.Ref == w.Ref && waiting.RunID == run })
	if err != nil {
		return err
	}
	accessor, err := n.leader.Callers.MayStart(ctx, by, w)
	if err == nil && n.allowed != nil {
		*n.allowed = allowance{accessor, true}
	}
	return err
}

// startOf checks a start. A repeated one has no other claims and services than the ledger has for the workload.
func (n caller) startOf(ctx context.Context, c *command.StartWorkload) error {
	want := Start{Ref: c.Ref}
	for _, held := range c.Claims {
		if held.Volume.Namespace != c.Ref.Namespace {
			return denied(fmt.Sprintf("workload %q may not use volume %q: it is in another namespace", c.Ref, held.Volume))
		}
		want.Volumes = append(want.Volumes, held.Volume)
	}
	for _, t := range c.Tokens {
		want.Services = append(want.Services, t.Service)
	}
	return n.mayStart(ctx, want, c.RunID, func(tx *state.ReadTx, standing claim.Workload) (bool, error) {
		if standing.Status != claim.Running {
			return false, nil
		}
		claims, err := tx.ClaimsOf(c.Ref)
		if err != nil {
			return false, err
		}
		tokens, err := tx.TokensOf(c.Ref)
		if err != nil {
			return false, err
		}
		for _, v := range want.Volumes {
			if !slices.ContainsFunc(claims, func(h claim.Claim) bool {
				return h.Volume == v && h.Node == n.Name && h.State == claim.Taken
			}) {
				return false, nil
			}
		}
		for _, t := range c.Tokens {
			if !slices.ContainsFunc(tokens, func(k claim.Token) bool { return k.ID == t.ID && k.Node == n.Name }) {
				return false, nil
			}
		}
		return true, nil
	})
}

// waitOf checks a wait.
func (n caller) waitOf(ctx context.Context, c *command.AwaitWorkload) error {
	return n.mayStart(ctx, Start{Ref: c.Ref, After: c.After}, c.RunID,
		func(_ *state.ReadTx, standing claim.Workload) (bool, error) {
			return standing.Status == claim.Waiting && slices.Equal(standing.After, c.After), nil
		})
}

// tokenOf checks the intent to get a token. A workload may get another one for a service that it has a token of.
func (n caller) tokenOf(ctx context.Context, t claim.Token) error {
	want := Start{Ref: t.Workload, Services: []string{t.Service}}
	return n.mayStart(ctx, want, "", func(tx *state.ReadTx, standing claim.Workload) (bool, error) {
		tokens, err := tx.TokensOf(t.Workload)
		return slices.ContainsFunc(tokens, func(k claim.Token) bool {
			return k.BelongsTo(standing) && k.SamePurpose(t) || k.ID == t.ID && k.SamePurpose(t)
		}), err
	})
}

// mayUse checks a look at a volume: its caller may start workloads that use it, or the node has a claim on it.
func (n caller) mayUse(ctx context.Context, ref claim.VolumeRef) error {
	refusal := n.record.CheckNamespace(ref.Namespace)
	if refusal == nil && !n.checked() {
		return nil
	}
	if refusal == nil && (n.token != "" || len(n.grant) > 0) {
		if refusal = n.mayLook(ctx, ref); refusal == nil {
			return nil
		}
	}
	claims, err := get(ctx, n.leader.Ledger.Read, (*state.ReadTx).Claims, ref)
	switch {
	case err != nil || slices.ContainsFunc(claims, func(c claim.Claim) bool { return c.Node == n.Name }):
		return err
	case refusal != nil:
		return refusal
	}
	return n.mayLook(ctx, ref)
}

// mayLook checks whether the caller may start workloads that use a volume.
func (n caller) mayLook(ctx context.Context, ref claim.VolumeRef) error {
	by, err := n.asker(ctx, func(waiting claim.Workload) bool { return waiting.Ref.Namespace == ref.Namespace })
	if err != nil {
		return err
	}
	return n.leader.Callers.MayUse(ctx, by, ref)
}

// mayReplace checks the stop of a workload that one of the node's waits for.
func (n caller) mayReplace(ctx context.Context, ref claim.WorkloadRef) error {
	if !n.checked() {
		return nil
	}
	by, err := n.asker(ctx, func(waiting claim.Workload) bool { return slices.Contains(waiting.After, ref) })
	if err != nil {
		return err
	}
	return n.leader.Callers.MayStop(ctx, by, ref)
}

// sees reports whether a workload is on the node, or one of the node's waits for it.
func (n caller) sees(ctx context.Context, ref claim.WorkloadRef) (is bool, err error) {
	err = n.leader.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		w, err := tx.Workload(ref)
		if is = err == nil && w.Node == n.Name; is {
			return nil
		}
		there, err := tx.WorkloadsOn(n.Name)
		is = slices.ContainsFunc(there, func(w claim.Workload) bool { return slices.Contains(w.After, ref) })
		return err
	})
	return is, err
}

// answers returns what a node may see of the answer to its query: of other nodes' workloads, only those that one of its
// own waits for, without the names of their runs. Others look to it as if they were not there.
func (n caller) answers(ctx context.Context, q command.Query) (func(answer any, err error) (any, error), error) {
	all := func(answer any, err error) (any, error) { return answer, err }
	var ref claim.WorkloadRef
	switch q := q.(type) {
	case *command.QueryWorkload:
		ref = q.Ref
	case *command.QueryClaims:
		ref = q.Workload
	default:
		return all, nil
	}
	seen, err := n.sees(ctx, ref)
	if err != nil {
		return nil, err
	}
	return func(answer any, err error) (any, error) {
		switch found := answer.(type) {
		case claim.Workload:
			switch {
			case err != nil || found.Node == n.Name:
			case !seen:
				return nil, fmt.Errorf("workload %q: %w", ref, claim.ErrWorkloadNotFound)
			default:
				// A caller that knows a run's name can end it before it begins.
				found.RunID, found.LastEndedRunID, found.StartedBy = "", "", nil
				return found, nil
			}
		case []claim.Claim:
			if seen {
				return found, err
			}
			return slices.DeleteFunc(slices.Clone(found), func(c claim.Claim) bool { return c.Node != n.Name }), err
		}
		return answer, err
	}, nil
}

// grantFor returns the leader's statement about a start that was allowed to wait; nil: none, or it cannot be made now.
func (n caller) grantFor(c command.Command) []byte {
	wait, waits := c.(*command.AwaitWorkload)
	if !waits || n.allowed == nil || !n.allowed.start {
		return nil
	}
	return n.leader.grant(n.allowed.accessor, n.Name, wait.Ref, wait.RunID)
}

// grant is a statement, which only servers can make and read, that a caller may start a run that waits. The node sends
// it with the start: the caller's token may be forgotten by then, since the agent keeps it in memory only.
func (l *Leader) grant(accessor, node string, ref claim.WorkloadRef, run string) []byte {
	if l.Keys == nil || run == "" {
		return nil
	}
	sealed, _, err := l.Keys.Seal(map[string]string{"accessor": accessor}, runOn(node, ref, run))
	if err != nil {
		return nil // the start needs the token then
	}
	return sealed
}

// granted opens a grant. It is false for another node or run, and with a key that is no longer there.
func (l *Leader) granted(grant []byte, node string, ref claim.WorkloadRef, run string) (accessor string, ok bool) {
	if l.Keys == nil || run == "" || len(grant) == 0 {
		return "", false
	}
	open, err := l.Keys.Unseal(grant, runOn(node, ref, run))
	return open["accessor"], err == nil
}

// runOn binds a grant to its run. No valid name has a NUL byte.
func runOn(node string, ref claim.WorkloadRef, run string) []byte {
	return []byte("grant\x00" + node + "\x00" + ref.Namespace + "\x00" + ref.ID + "\x00" + run)
}
