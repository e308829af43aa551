package acl

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	ledger "github.com/pannier/pannier/cluster/acl"
)

// Finder finds what the ledger has of a token.
type Finder interface {
	// Granted reads a token by the SHA-256 of its secret, with its policies; empty: the policy
	// for calls without a token, where there is one. Error: ledger.ErrTokenNotFound.
	Granted(ctx context.Context, secretHash string) (ledger.Granted, error)
}

// Hash is what the ledger knows of a secret.
func Hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// Resolver finds what a secret allows. It is safe for concurrent use.
type Resolver struct {
	finder Finder
	keep   time.Duration
	log    hclog.Logger
	now    func() time.Time

	mu    sync.Mutex
	found map[string]finding // by a secret's hash
	rules map[string]*Rules  // by the names and the indexes of policies
}

// finding is what the finder said, and when.
type finding struct {
	granted ledger.Granted
	at      time.Time
}

// maxKept bounds each of a resolver's caches; a full one is emptied.
const maxKept = 1024

// NewResolver makes a resolver. Where the finder is the ledger of this host keep is 0: it
// is asked each time. Where it is a call to a server, keep is how long its answer is
// taken again without asking, and for longer while no server can be reached.
func NewResolver(finder Finder, keep time.Duration, log hclog.Logger) *Resolver {
	return &Resolver{finder: finder, keep: keep, log: log, now: time.Now, found: map[string]finding{}, rules: map[string]*Rules{}}
}

// Resolve finds what the token with this secret allows; empty: what a call without one may
// do. Errors: ErrUnknownToken, ErrExpired; those of the finder.
func (r *Resolver) Resolve(ctx context.Context, secret string) (Identity, error) {
	hash := ""
	if secret != "" {
		hash = Hash(secret)
	}
	g, err := r.find(ctx, hash)
	switch {
	case errors.Is(err, ledger.ErrTokenNotFound):
		return Identity{}, ErrUnknownToken
	case err != nil:
		return Identity{}, err
	case g.Token.Expired(r.now()):
		return Identity{}, fmt.Errorf("%w: token %q (accessor %s) ended at %s", ErrExpired, g.Token.Name, g.Token.Accessor, g.Token.ExpiresAt.UTC().Format(time.RFC3339))
	}
	id := Identity{Accessor: g.Token.Accessor, Name: g.Token.Name, ExpiresAt: g.Token.ExpiresAt, Rules: Management}
	if g.Token.Type != ledger.Management {
		id.Rules = r.compiled(g.Policies)
	}
	for _, p := range g.Policies {
		id.Policies = append(id.Policies, p.Name)
	}
	return id, nil
}

// find asks the finder, or takes what it said before.
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
		return before.granted, nil // no server can be reached, and work must go on
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

// compiled are the rules of policies. One that this program does not understand, as a newer
// one may have written it, allows nothing at all, not even what the others do: it
// could be the one that denies.
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
