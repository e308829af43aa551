// Package tokens is the authority over workloads' Consul tokens: it has them made, records each in the ledger, and
// revokes the ones that are no longer needed. It implements servicesteps.Tokens.
//
// Invariants:
//
//   - A token is in the ledger before Consul is asked for it, and until Consul has confirmed that it is gone. The
//     sweep revokes tokens that Consul has and the ledger has not.
//   - A token is requested only for what the ledger says: a service of a workload that runs on the node that asks.
//     A caller cannot ask for a policy.
//   - One token is derived or revoked by one caller at a time; a revoked token is not derived again.
//   - No secret is in a log, an event, an error or the ledger.
//
// A minted token has its ledger id as its accessor, so one command of the ledger is enough. A token from a login
// has an accessor that Consul chose, which is recorded afterwards. It is revoked with its own secret; if that is
// lost, the token expires.
//
// The key that signs JWTs is rotated in phases (claim.RotationPhase), which the ledger has and the leader ends:
//
//   - A key signs only after every server publishes it and every Consul has shown that it has it.
//   - A key that was replaced is published until the last JWT that it has signed is over.
//
// Consul is reached only through plugins of the kind identity.
package tokens

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/internal/kmutex"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
)

// Ledger is the part of cluster.Node that the authority uses.
type Ledger interface {
	cluster.Ledger
	Read(ctx context.Context, fn func(tx *state.ReadTx) error) error
	Watch(ctx context.Context, topics ...state.Topic) <-chan struct{}
	Identity(ctx context.Context) (claim.Cluster, error)
}

// Config is the configuration of an Authority.
type Config struct {
	Ledger Ledger
	// Consuls are the agent's consul and identity blocks by name; the latter have only a name.
	Consuls map[string]service.Consul
	// Audiences are the aud of the JWTs for the issuers that get one, by the name of the block. A Consul with an auth
	// method gets one anyway; absent: DefaultAudience.
	Audiences map[string]string
	// Identity runs fn with a client of the identity plugin of a consul block, within the deadline of one call, and
	// again if the plugin ended during the call (catalog.Do).
	Identity func(ctx context.Context, consul string, fn func(ctx context.Context, c identity.Identity) error) error
	// Sealer protects the private part of the signing key from the ledger's readers.
	Sealer *secrets.Sealer
	// KeySets asks the other servers for the JSON Web Key Sets that they publish, and returns them by server. The error
	// names the servers that did not answer. nil: there are no others.
	KeySets func(ctx context.Context) (map[string][]byte, error)
	Events  *events.Bus
	Log     hclog.Logger
}

// Authority issues and revokes tokens. It is safe for concurrent use. Its goroutines end with the callers of Derive.
type Authority struct {
	Config

	overlap, untold, rotateLongest time.Duration

	tokens  kmutex.Locks[string] // by id
	revokes *rate.Limiter        // limits the sweep

	mu      sync.Mutex
	cluster string // Pannier's id of the cluster; empty: not read yet
	signer  *signer
	waiting waiting
	// doubtful are the tokens that Consul was asked for but has not answered: a request that is still on its way
	// may make the token after it was revoked.
	doubtful map[string]bool // by id
}

// New returns an Authority.
func New(cfg Config) *Authority {
	return &Authority{
		Config:  cfg,
		overlap: failpoint.Shorter(keyOverlap), untold: keyUntold, rotateLongest: rotateLongest,
		revokes:  rate.NewLimiter(revokePerSecond, revokeParallel),
		doubtful: map[string]bool{},
	}
}

// Intend records in the ledger that Consul will be asked for t, of which nothing is known yet: only Consul's own answer
// has an accessor. Errors: FailedPrecondition if its workload does
// not run on its node, or if the id is taken.
func (a *Authority) Intend(ctx context.Context, t claim.Token) error {
	if _, err := a.consul(t.Consul); err != nil {
		return err
	}
	intent := claim.Token{ID: t.ID, Workload: t.Workload, Node: t.Node, Service: t.Service, Consul: t.Consul}
	_, err := cluster.Apply(ctx, a.Ledger, &command.PutToken{Token: intent})
	return ledgerError(err)
}

// OnNode lists the ledger's tokens of a node, including tokens of workloads that are gone.
func (a *Authority) OnNode(ctx context.Context, node string) (all []claim.Token, err error) {
	err = a.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		all, err = tx.TokensOn(node)
		return err
	})
	return all, ledgerError(err)
}

// Listed is a token of the ledger.
type Listed struct {
	claim.Token
	// Orphan is true if its workload is gone, so the next sweep revokes it.
	Orphan bool
}

// List reads tokens from the ledger: a namespace's, or all if it is empty, and of a workload, or of all if it is empty.
func (a *Authority) List(ctx context.Context, namespace, workload string) (all []Listed, err error) {
	err = a.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		found, err := tx.Tokens(namespace)
		if err != nil {
			return err
		}
		for _, t := range found {
			if workload != "" && t.Workload.ID != workload {
				continue
			}
			why, err := orphaned(tx, &t)
			if err != nil {
				return err
			}
			all = append(all, Listed{Token: a.withAccessor(t), Orphan: why != ""})
		}
		return nil
	})
	return all, ledgerError(err)
}

// withAccessor returns a token with its accessor, which the ledger has only where it is not the id.
func (a *Authority) withAccessor(t claim.Token) claim.Token {
	if c, known := a.Consuls[t.Consul]; t.Accessor == "" && known && c.AuthMethod == "" {
		t.Accessor = t.ID
	}
	return t
}

// Read reads a token back from this node's Consul agent by its secret. NotFound: the agent does not know it, or not
// yet. Internal: the secret is another token's.
func (a *Authority) Read(ctx context.Context, t claim.Token, secret string) error {
	c, err := a.consul(t.Consul)
	if err != nil {
		return err
	}
	var read identity.Token
	err = a.Identity(ctx, t.Consul, func(ctx context.Context, i identity.Identity) (err error) {
		read, err = i.Read(ctx, c, secret)
		return err
	})
	if err == nil && read.Accessor != t.Accessor && t.Accessor != "" {
		return coded(codes.Internal, fmt.Errorf("the identity plugin gave the secret of another token: its accessor is %s, "+
			"and that of the token for service %q is %s: report this to its author", read.Accessor, t.Service, t.Accessor))
	}
	return err
}

// consul returns one of the agent's consul blocks.
func (a *Authority) consul(name string) (service.Consul, error) {
	c, ok := a.Consuls[name]
	if ok {
		return c, nil
	}
	known := "the agent's configuration has none"
	if len(a.Consuls) > 0 {
		known = "known are " + strings.Join(slices.Sorted(maps.Keys(a.Consuls)), ", ")
	}
	return c, coded(codes.FailedPrecondition, fmt.Errorf("no consul block is named %q: %s", name, known))
}

// clusterID returns the id that marks this cluster's tokens.
func (a *Authority) clusterID(ctx context.Context) (string, error) {
	a.mu.Lock()
	id := a.cluster
	a.mu.Unlock()
	if id != "" {
		return id, nil
	}
	c, err := a.Ledger.Identity(ctx)
	if err != nil {
		return "", ledgerError(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cluster = c.ID
	return c.ID, nil
}

// codedError is an error of the authority itself, with a gRPC code like the plugins' errors.
type codedError struct {
	code codes.Code
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }

func (e *codedError) Unwrap() error { return e.err }

// GRPCStatus returns the code for status.FromError.
func (e *codedError) GRPCStatus() *status.Status { return status.New(e.code, e.Error()) }

func coded(code codes.Code, err error) error { return &codedError{code, err} }

// otherPurpose is the error if t differs from what the ledger has recorded for its id.
func otherPurpose(t claim.Token) error {
	return coded(codes.PermissionDenied, fmt.Errorf("the ledger has recorded the id %s for another purpose", t.ID))
}

// ledgerError gives an error of the ledger its gRPC code, which reports whether a retry makes sense.
func ledgerError(err error) error {
	if c, ok := errcode.Of(err); ok {
		return coded(codes.Code(c), err)
	}
	return err // the end of the caller's context, or a fault
}
