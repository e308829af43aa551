package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	"github.com/pannier/pannier/host/internal/peer/route"
)

// Reader reads this server's own ledger.
type Reader interface {
	Read(ctx context.Context, fn func(tx *state.ReadTx) error) error
}

// Ledger is a server's own ledger (*cluster.Node).
type Ledger interface {
	Reader
	// ReadLatest reads after confirming that this server leads.
	ReadLatest(ctx context.Context, fn func(tx *state.ReadTx) error) error
	// ApplyHere applies a command, if this server leads.
	ApplyHere(ctx context.Context, c command.Command) (result any, err error)
	// AskHere answers a query after confirming that this server leads.
	AskHere(ctx context.Context, q command.Query) (answer any, index uint64, err error)
	// Term is the term in which this server leads; 0: it does not lead.
	Term() uint64
	route.Local
}

// Heartbeats answers nodes' heartbeats (heartbeat.Tracker).
type Heartbeats interface {
	Answer(ctx context.Context, node, bootID string) (lease.Answer, error)
}

// Tokens give services their tokens (tokens.Authority).
type Tokens interface {
	Intend(ctx context.Context, t claim.Token) error
	Derive(ctx context.Context, t claim.Token) (derived claim.Token, secret string, err error)
	Revoke(ctx context.Context, t claim.Token, secret string) error
}

// Controllers attach volumes (controllers.Controllers).
type Controllers interface {
	Attach(ctx context.Context, v claim.Volume, modes claim.Capability, node string,
		intend func(ctx context.Context) error) (map[string]string, error)
}

// Leader does what agents, including this one, ask of the server that leads. Its callers have authenticated the agent.
type Leader struct {
	Ledger      Ledger
	Controllers Controllers
	// Secrets decrypts a volume's secrets.
	Secrets func(ctx context.Context, v claim.Volume) (map[string]string, error)
	// Keys are this server's secrets keys, for the other servers.
	Keys       *secrets.Sealer
	Tokens     Tokens
	Heartbeats Heartbeats
	// Stop asks a node to stop a workload (Nodes.StopWorkload).
	Stop func(ctx context.Context, node string, ref claim.WorkloadRef, reason string) error
	// Servers lists the cluster's servers, as serf knows them.
	Servers func() []route.Member
	// Callers checks what nodes do for others; nil: ACLs are off.
	Callers Callers
}

// get reads one thing of the ledger, with one of the ways to read it.
func get[K, V any](ctx context.Context, read func(context.Context, func(*state.ReadTx) error) error,
	of func(*state.ReadTx, K) (V, error), key K,
) (v V, err error) {
	err = read(ctx, func(tx *state.ReadTx) error {
		v, err = of(tx, key)
		return err
	})
	return v, err
}

// leading returns the server that leads, as far as this one knows.
func (l *Leader) leading() route.Member {
	name := l.Ledger.Stats().LeaderName
	all := l.Servers()
	if at := slices.IndexFunc(all, func(m route.Member) bool { return m.Name == name }); at >= 0 {
		return all[at]
	}
	return route.Member{Name: name}
}

// Attach attaches a volume to a node that holds a claim on it, and records that on the claim first. The modes are those
// of the claim; everything else about the volume comes from the ledger.
func (l *Leader) Attach(ctx context.Context, node string, ref claim.VolumeRef, modes claim.Capability,
	options claim.MountOptions,
) (map[string]string, error) {
	v, held, err := l.held(ctx, node, ref)
	if err != nil {
		return nil, err
	}
	if held.AccessMode != modes.AccessMode || held.AttachmentMode != modes.AttachmentMode {
		return nil, denied(fmt.Sprintf("node %q holds a claim on volume %q as %s %s, and asks for %s %s",
			node, ref, held.AccessMode, held.AttachmentMode, modes.AccessMode, modes.AttachmentMode))
	}
	v.MountOptions = options
	published, err := l.Controllers.Attach(ctx, v, modes, node, func(ctx context.Context) error {
		_, err := l.Ledger.ApplyHere(ctx, &command.IntendAttach{Volume: ref, Workload: held.Workload, Index: held.Index})
		return err
	})
	if err != nil && !l.Ledger.Leader() {
		// It may have failed because another server leads now. That server will say if there is another reason, since
		// an attach may be repeated.
		err = fmt.Errorf("%w: %w", command.ErrNotLeader, err)
	}
	return published, err
}

// VolumeSecrets decrypts the secrets of a volume that a node holds a claim on.
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

// held returns a volume and the claim that a node holds on it. A claim that is being released does not count.
func (l *Leader) held(ctx context.Context, node string, ref claim.VolumeRef) (v claim.Volume, held claim.Claim,
	err error,
) {
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
	// Do not reveal whether there is such a volume.
	return v, held, fmt.Errorf("%w: node %q holds no claim on volume %q: %w", ErrDenied, node, ref, claim.ErrClaimNotFound)
}

// RevokeToken revokes a node's token that the ledger knows. An unknown token belongs to nobody, so there is nothing to
// revoke.
func (l *Leader) RevokeToken(ctx context.Context, node string, t claim.Token, secret string) error {
	noted, err := get(ctx, l.Ledger.ReadLatest, (*state.ReadTx).Token, t.ID)
	switch {
	case errors.Is(err, claim.ErrTokenNotFound):
		return nil
	case err != nil:
		return err
	case noted.Node != node:
		return denied(fmt.Sprintf("token %s belongs to node %q, not to node %q", t.ID, noted.Node, node))
	default:
		noteAccessor(ctx, noted)
		return l.Tokens.Revoke(ctx, noted, secret)
	}
}

// Replace asks the node of a workload to stop it, because a workload of the calling node waits for its end.
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
	waits := slices.ContainsFunc(there,
		func(w claim.Workload) bool { return w.Status == claim.Waiting && slices.Contains(w.After, ref) })
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
