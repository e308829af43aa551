package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	"github.com/pannier/pannier/host/internal/leader/route"
	"github.com/pannier/pannier/host/internal/secrets"
)

// Reader reads this server's own ledger.
type Reader interface {
	Read(ctx context.Context, fn func(tx *state.ReadTx) error) error
}

// Ledger is a server's own (cluster.Node).
type Ledger interface {
	Reader
	// ReadLatest reads on the leader, after it has made sure that it leads.
	ReadLatest(ctx context.Context, fn func(tx *state.ReadTx) error) error
	// ApplyFor brings commands into the log and says what became of each.
	ApplyFor(ctx context.Context, commands ...command.Command) []cluster.Applied
	// AnswerQuery answers a query with what is agreed on at this moment.
	AnswerQuery(ctx context.Context, q command.Query) (answer any, index uint64, err error)
	// Term is the one in which this server leads; 0: it does not.
	Term() uint64
	route.Local
}

// Heartbeats are the leader's count of which nodes it has heard from
// (heartbeat.Tracker).
type Heartbeats interface {
	Answer(ctx context.Context, node string, seq uint64) (lease.Answer, error)
}

// Tokens give services their tokens (tokens.Authority).
type Tokens interface {
	Intend(ctx context.Context, t claim.Token) error
	Derive(ctx context.Context, t claim.Token) (derived claim.Token, secret string, err error)
	Revoke(ctx context.Context, t claim.Token, secret string) error
}

// Controllers attach volumes (controllers.Controllers).
type Controllers interface {
	AttachIf(ctx context.Context, v claim.Volume, modes claim.Capability, node string, claimed func(ctx context.Context) error) (map[string]string, error)
}

// Leader is what a server does for the cluster's agents, itself included, while it leads.
// Who asks has been checked by whoever calls it.
type Leader struct {
	Ledger      Ledger
	Controllers Controllers
	// Secrets opens a volume's sealed secrets.
	Secrets func(ctx context.Context, v claim.Volume) (map[string]string, error)
	// Keys are this server's, for the others.
	Keys       *secrets.Sealer
	Tokens     Tokens
	Heartbeats Heartbeats
	// Stop asks a node to stop a workload (Nodes.StopWorkload).
	Stop func(ctx context.Context, node string, ref claim.WorkloadRef, reason string) error
	// Servers are the cluster's, as serf knows them.
	Servers func() []route.Member
}

// leading is the server that leads, as far as this one knows.
func (l *Leader) leading() route.Member {
	name := l.Ledger.Stats().LeaderName
	all := l.Servers()
	if at := slices.IndexFunc(all, func(m route.Member) bool { return m.Name == name }); at >= 0 {
		return all[at]
	}
	return route.Member{Name: name}
}

// Attach attaches a volume that a node holds a claim on to that node. The modes are those
// of the claim, and what else there is to know of the volume the ledger tells.
func (l *Leader) Attach(ctx context.Context, node string, ref claim.VolumeRef, modes claim.Capability, options claim.MountOptions) (map[string]string, error) {
	v, held, err := l.held(ctx, node, ref)
	if err != nil {
		return nil, err
	}
	if held.AccessMode != modes.AccessMode || held.AttachmentMode != modes.AttachmentMode {
		return nil, denied(fmt.Sprintf("node %q holds a claim on volume %q as %s %s, and asks for %s %s",
			node, ref, held.AccessMode, held.AttachmentMode, modes.AccessMode, modes.AttachmentMode))
	}
	v.MountOptions = options
	published, err := l.Controllers.AttachIf(ctx, v, modes, node, func(ctx context.Context) error {
		_, _, err := l.held(ctx, node, ref)
		return err
	})
	if err != nil && !l.Ledger.Leader() {
		// It failed since another server leads, or that one will say why: an attach may be repeated.
		err = fmt.Errorf("%w: %w", command.ErrNotLeader, err)
	}
	return published, err
}

// VolumeSecrets opens the secrets of a volume that a node holds a claim on.
func (l *Leader) VolumeSecrets(ctx context.Context, node string, ref claim.VolumeRef) (map[string]string, error) {
	v, _, err := l.held(ctx, node, ref)
	if err != nil {
		return nil, err
	}
	opened, err := l.Secrets(ctx, v)
	if err != nil {
		return nil, fmt.Errorf("open the secrets of volume %q: %w", ref, err)
	}
	return opened, nil
}

// held is a volume and a claim that a node holds on it; one on its way out is none.
func (l *Leader) held(ctx context.Context, node string, ref claim.VolumeRef) (v claim.Volume, held claim.Claim, err error) {
	var claims []claim.Claim
	err = l.Ledger.ReadLatest(ctx, func(tx *state.ReadTx) error {
		if claims, err = tx.Claims(ref); err != nil {
			return err
		}
		v, err = tx.Volume(ref)
		return err
	})
	if err != nil && !errors.Is(err, claim.ErrVolumeNotFound) {
		return v, held, err
	}
	for _, c := range claims {
		if c.Node == node && c.State == claim.Taken {
			return v, c, err
		}
	}
	// Whether there is such a volume, others need not know.
	return v, held, fmt.Errorf("%w: node %q holds no claim on volume %q: %w", ErrDenied, node, ref, claim.ErrClaimNotFound)
}

// RevokeToken ends a token of a node as the ledger has noted it. One that it does not
// know is nobody's: there is nothing to end.
func (l *Leader) RevokeToken(ctx context.Context, node string, t claim.Token, secret string) error {
	var noted claim.Token
	err := l.Ledger.ReadLatest(ctx, func(tx *state.ReadTx) (err error) {
		noted, err = tx.Token(t.ID)
		return err
	})
	switch {
	case errors.Is(err, claim.ErrTokenNotFound):
		return nil
	case err != nil:
		return err
	case noted.Node != node:
		return denied(fmt.Sprintf("token %s is one of node %q, not of node %q", t.ID, noted.Node, node))
	default:
		return l.Tokens.Revoke(ctx, noted, secret)
	}
}

// Replace asks the node of a workload to stop it, for a workload of the asking node that
// waits for its end.
func (l *Leader) Replace(ctx context.Context, node string, ref claim.WorkloadRef, reason string) error {
	var there []claim.Workload
	var w claim.Workload
	err := l.Ledger.ReadLatest(ctx, func(tx *state.ReadTx) (err error) {
		if there, err = tx.WorkloadsOn(node); err != nil {
			return err
		}
		w, err = tx.Workload(ref)
		if errors.Is(err, claim.ErrWorkloadNotFound) {
			w.Status, err = claim.Ended, nil
		}
		return err
	})
	waits := slices.ContainsFunc(there, func(w claim.Workload) bool { return w.Status == claim.Waiting && slices.Contains(w.After, ref) })
	switch {
	case err != nil:
		return err
	case !waits:
		return denied(fmt.Sprintf("no workload of node %q waits for workload %q", node, ref))
	case w.Status == claim.Ended:
		return nil
	default:
		return l.Stop(ctx, w.Node, ref, reason)
	}
}
