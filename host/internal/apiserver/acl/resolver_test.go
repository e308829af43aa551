package acl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	ledger "github.com/pannier/pannier/cluster/acl"
)

// fakeLedger has tokens by secret.
type fakeLedger struct {
	mu        sync.Mutex
	tokens    map[string]ledger.Granted
	anonymous *ledger.Policy
	err       error
	asked     int
	byHash    map[string]ledger.Granted
}

func (f *fakeLedger) Granted(_ context.Context, hash string) (ledger.Granted, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if hash == "" && f.anonymous != nil {
		return ledger.Granted{Policies: []ledger.Policy{*f.anonymous}}, nil
	}
	if hash == "" {
		return ledger.Granted{}, nil
	}
	if f.err != nil {
		return ledger.Granted{}, f.err
	}
	for secret, g := range f.tokens {
		if ledger.Hash(secret) == hash {
			return g, nil
		}
	}
	return ledger.Granted{}, fmt.Errorf("look: %w", ledger.ErrTokenNotFound)
}

func policy(name string, index uint64, rules string) ledger.Policy {
	return ledger.Policy{Name: name, ModifyIndex: index, Rules: rules}
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// newResolver returns a resolver whose clock the test sets.
func newResolver(f *fakeLedger, keep time.Duration) (*Resolver, *time.Time) {
	now := noon
	r := NewResolver(f, keep, hclog.NewNullLogger())
	r.now = func() time.Time { return now }
	return r, &now
}

func TestResolve(t *testing.T) {
	f := &fakeLedger{tokens: map[string]ledger.Granted{
		"m": {Token: ledger.Token{Accessor: "a-m", Name: "boss", Type: ledger.Management}},
		"c": {
			Token: ledger.Token{Accessor: "a-c", Name: "ci", Type: ledger.Client, ExpiresAt: noon.Add(time.Hour)},
			Policies: []ledger.Policy{
				policy("read", 3, `namespace "a" { policy = "read" }`),
				policy("nodes", 4, `node { policy = "write" }`),
			},
		},
		"none": {Token: ledger.Token{Accessor: "a-n", Type: ledger.Client}}, // its policies were deleted
		"new": {
			Token: ledger.Token{Accessor: "a-x", Type: ledger.Client},
			Policies: []ledger.Policy{
				policy("read", 3, `namespace "a" { policy = "read" }`),
				policy("newer", 9, `galaxy { policy = "deny" }`),
			},
		},
	}}
	r, now := newResolver(f, 0)
	resolve := func(secret string) Identity {
		t.Helper()
		id, err := r.Resolve(t.Context(), secret)
		if err != nil {
			t.Fatalf("%q: %v", secret, err)
		}
		return id
	}
	if id := resolve("m"); !id.IsManagement() || id.Accessor != "a-m" || id.Name != "boss" {
		t.Errorf("%+v", id)
	}
	id := resolve("c")
	if id.IsManagement() || !id.AllowNamespace("a", CSIReadVolume) || id.AllowNamespace("b", CSIReadVolume) ||
		!id.Allow(Node, Write) ||
		strings.Join(id.Policies, " ") != "read nodes" || !id.ExpiresAt.Equal(noon.Add(time.Hour)) {
		t.Errorf("%+v", id)
	}
	for _, secret := range []string{"none", "new", ""} {
		if id := resolve(secret); id.IsManagement() || id.AllowNamespace("a", CSIListVolume) || id.Allow(Plugin, List) {
			t.Errorf("%q allows something", secret)
		}
	}
	for _, secret := range []string{"C", " c", "a-c", ledger.Hash("c")} {
		if _, err := r.Resolve(t.Context(), secret); !errors.Is(err, ledger.ErrUnknownToken) {
			t.Errorf("%q: %v", secret, err)
		}
	}
	// A policy with another text counts at once.
	g := f.tokens["c"]
	g.Policies = []ledger.Policy{policy("read", 7, `namespace "b" { policy = "read" }`)}
	f.tokens["c"] = g
	if id := resolve("c"); id.AllowNamespace("a", CSIReadVolume) || !id.AllowNamespace("b", CSIReadVolume) {
		t.Error("the policy counts as it was")
	}
	p := policy(ledger.Anonymous, 8, `namespace "open" { policy = "read" }`)
	f.anonymous = &p
	if id := resolve(""); !id.AllowNamespace("open", CSIReadVolume) || id.AllowNamespace("a", CSIReadVolume) ||
		id.Accessor != "" {
		t.Error("the anonymous policy does not count")
	}
	*now = noon.Add(time.Hour)
	if _, err := r.Resolve(t.Context(), "c"); !errors.Is(err, ledger.ErrExpired) ||
		!strings.Contains(err.Error(), `token "ci" (accessor a-c) ended at 2026-01-01T13:00:00Z`) {
		t.Errorf("got %v", err)
	}
}

// A plain node reuses answers for a while, and for longer while no server answers.
func TestResolveFarAway(t *testing.T) {
	f := &fakeLedger{tokens: map[string]ledger.Granted{"m": {Token: ledger.Token{
		Accessor: "a", Type: ledger.Management,
		ExpiresAt: noon.Add(time.Hour),
	}}}}
	r, now := newResolver(f, time.Minute)
	try := func(asked int, want error) {
		t.Helper()
		_, err := r.Resolve(t.Context(), "m")
		if f.asked != asked || !errors.Is(err, want) {
			t.Errorf("asked %d times, not %d: %v, want %v", f.asked, asked, err, want)
		}
	}
	try(1, nil)
	try(1, nil)
	*now = noon.Add(time.Minute)
	try(2, nil)
	away := errors.New("no server")
	f.err = away
	*now = noon.Add(30 * time.Minute)
	try(3, nil)
	if _, err := r.Resolve(t.Context(), "other"); !errors.Is(err, away) {
		t.Errorf("a token that was never seen: %v", err)
	}
	*now = noon.Add(time.Hour)
	try(5, ledger.ErrExpired)
	*now, f.err = noon.Add(30*time.Minute), nil
	try(6, nil)
	delete(f.tokens, "m")
	*now = noon.Add(31*time.Minute - time.Second)
	try(6, nil)
	*now = noon.Add(31 * time.Minute)
	try(7, ledger.ErrUnknownToken)
	f.err = away
	try(8, away) // a token known to be deleted is not cached
}

func TestResolveManyAtOnce(t *testing.T) {
	f := &fakeLedger{tokens: map[string]ledger.Granted{}}
	for i := range 2 * maxKept {
		f.tokens[fmt.Sprint(i)] = ledger.Granted{
			Token:    ledger.Token{Accessor: fmt.Sprint(i), Type: ledger.Client},
			Policies: []ledger.Policy{policy("p", uint64(i), fmt.Sprintf(`namespace "n%d" { policy = "read" }`, i))},
		}
	}
	r, _ := newResolver(f, time.Hour)
	r.finder = byAccessor{f}
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 2 * maxKept {
				n := fmt.Sprint((i + worker*100) % (2 * maxKept))
				id, err := r.Resolve(t.Context(), n)
				if err != nil || id.Accessor != n || !id.AllowNamespace("n"+n, CSIReadVolume) ||
					id.AllowNamespace("n", CSIReadVolume) {
					t.Errorf("%s: %+v %v", n, id, err)
					return
				}
			}
		})
	}
	all.Wait()
	if len(r.found) > maxKept || len(r.rules) > maxKept {
		t.Errorf("%d and %d are kept", len(r.found), len(r.rules))
	}
}

// byAccessor does not search.
type byAccessor struct{ *fakeLedger }

func (f byAccessor) Granted(_ context.Context, hash string) (ledger.Granted, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byHash == nil {
		f.byHash = map[string]ledger.Granted{}
		for secret, g := range f.tokens {
			f.byHash[ledger.Hash(secret)] = g
		}
	}
	return f.byHash[hash], nil
}
