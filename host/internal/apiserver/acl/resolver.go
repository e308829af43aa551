package acl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// Identity is what a caller's token says about the caller.
type Identity struct {
	// Accessor and Name are the token's; empty: the call has none.
	Accessor, Name string
	Type           ledger.TokenType
	// Policies are the names of the token's and its roles' policies.
	Policies []string
	// ExpiresAt is when the token expires; zero: never.
	ExpiresAt time.Time
	*Rules
}

// Finder looks a token up in the ledger.
type Finder interface {
	// Granted returns a token and its policies by the SHA-256 of its secret. An empty hash stands for calls without a
	// token, and finds the policy for them, if there is one. Error: ledger.ErrTokenNotFound.
	Granted(ctx context.Context, secretHash string) (ledger.Granted, error)
}

// Here is a Finder for servers: it reads their own copy of the ledger.
type Here struct {
	Ledger interface {
		Read(ctx context.Context, fn func(tx *state.ReadTx) error) error
	}
}

// Granted implements Finder.
func (h Here) Granted(ctx context.Context, secretHash string) (g ledger.Granted, err error) {
	err = h.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		g, err = tx.ACLGranted(secretHash)
		return err
	})
	return g, err
}

// Servers is a Finder for plain nodes: it asks the servers.
type Servers struct{ Ledger cluster.Ledger }

// Granted implements Finder.
func (s Servers) Granted(ctx context.Context, secretHash string) (ledger.Granted, error) {
	g, _, err := cluster.Ask(ctx, s.Ledger, &command.QueryACL{SecretHash: secretHash}, cluster.Blocking{})
	return g, err
}

// Resolver finds what a secret allows. It is safe for concurrent use.
type Resolver struct {
	finder Finder
	keep   time.Duration
	log    hclog.Logger
	now    func() time.Time

	mu    sync.Mutex
	found map[string]finding // by the secret's hash
	rules map[string]*Rules  // by the names and indexes of the policies
}

// finding is an answer of the finder and its time.
type finding struct {
	granted ledger.Granted
	at      time.Time
}

// maxKept bounds each of a resolver's caches; a full one is emptied.
const maxKept = 1024

// NewResolver returns a resolver. keep is how long an answer of the finder is reused; answers are reused for
// longer while the finder fails. It is 0 if the finder reads the ledger on this host, which is then read for
// each call.
func NewResolver(finder Finder, keep time.Duration, log hclog.Logger) *Resolver {
	return &Resolver{
		finder: finder, keep: keep, log: log, now: time.Now, found: map[string]finding{},
		rules: map[string]*Rules{},
	}
}

// Resolve returns what the token with this secret allows; an empty secret stands for calls without a token. Errors:
// ledger.ErrUnknownToken, ledger.ErrExpired, the finder's errors.
func (r *Resolver) Resolve(ctx context.Context, secret string) (Identity, error) {
	hash := ""
	if secret != "" {
		hash = ledger.Hash(secret)
	}
	return r.ResolveHash(ctx, hash)
}

// ResolveHash is Resolve by the form in which the ledger has the secret.
func (r *Resolver) ResolveHash(ctx context.Context, hash string) (Identity, error) {
	g, err := r.find(ctx, hash)
	switch {
	case errors.Is(err, ledger.ErrTokenNotFound):
		return Identity{}, ledger.ErrUnknownToken
	case err != nil:
		return Identity{}, err
	case g.Token.Expired(r.now()):
		return Identity{}, fmt.Errorf("%w: token %q (accessor %s) ended at %s", ledger.ErrExpired, g.Token.Name, g.Token.Accessor,
			g.Token.ExpiresAt.UTC().Format(time.RFC3339))
	}
	id := Identity{
		Accessor: g.Token.Accessor, Name: g.Token.Name, Type: g.Token.Type, ExpiresAt: g.Token.ExpiresAt, Rules: Management,
	}
	if g.Token.Type != ledger.Management {
		id.Rules = r.compiled(g.Policies)
	}
	for _, p := range g.Policies {
		id.Policies = append(id.Policies, p.Name)
	}
	return id, nil
}

// find asks the finder or takes its earlier answer.
func (r *Resolver) find(ctx context.Context, hash string) (ledger.Granted, error) {
	asked := r.now()
	r.mu.Lock()
	before, known := r.found[hash]
	r.mu.Unlock()
	if known && asked.Sub(before.at) < r.keep {
		return before.granted, nil
	}
	g, err := r.finder.Granted(ctx, hash)
	unknown := errors.Is(err, ledger.ErrTokenNotFound)
	switch {
	case r.keep == 0:
		return g, err
	case err != nil && !unknown && known:
		return before.granted, nil // no server can be reached: keep working with the last answer
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.found, hash)
	if err == nil {
		if len(r.found) >= maxKept {
			clear(r.found)
		}
		r.found[hash] = finding{g, asked}
	}
	return g, err
}

// compiled returns the rules of policies. If one of them cannot be parsed, because a newer version wrote it, the
// rules allow nothing: that policy could contain a deny.
func (r *Resolver) compiled(policies []ledger.Policy) *Rules {
	var key strings.Builder
	for _, p := range policies {
		fmt.Fprintf(&key, "%s@%d ", p.Name, p.ModifyIndex)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if rules, known := r.rules[key.String()]; known {
		return rules
	}
	var parsed []Policy
	for _, p := range policies {
		one, err := Parse(p.Rules)
		if err != nil {
			r.log.Error("an ACL policy is not understood, so who has it may do nothing", "policy", p.Name, "error", err)
			parsed = nil
			break
		}
		parsed = append(parsed, one)
	}
	rules := Merge(parsed...)
	if len(r.rules) >= maxKept {
		clear(r.rules)
	}
	r.rules[key.String()] = rules
	return rules
}
