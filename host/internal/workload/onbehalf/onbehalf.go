// Package onbehalf carries with a context for whom an agent's calls to the leader are made. A node cannot decide
// alone what a caller of its API may do: the leader checks the caller's token again.
package onbehalf

import (
	"context"
	"sync"
)

// Caller is whom calls are made for, such as the start of a workload. It is safe for concurrent use; nil: nobody.
type Caller struct {
	mu    sync.Mutex
	token string
	grant []byte
}

// New returns a caller with the secret of its token (empty: it has none) and an earlier grant (nil: none).
func New(token string, grant []byte) *Caller { return &Caller{token: token, grant: grant} }

// Credentials are what the leader has to see: the token's secret, and the leader's statement (nil: none) that it has
// allowed the start to wait.
func (c *Caller) Credentials() (token string, grant []byte) {
	if c == nil {
		return "", nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.token, c.grant
}

// Granted keeps a statement of the leader.
func (c *Caller) Granted(grant []byte) {
	if c == nil || len(grant) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.grant = grant
}

// SetToken replaces the token: another caller has joined; an empty one forgets it.
func (c *Caller) SetToken(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = token
}

type key struct{}

// With says for whom the calls with the context are made.
func With(ctx context.Context, c *Caller) context.Context { return context.WithValue(ctx, key{}, c) }

// From returns for whom the calls with the context are made; nil: for the agent itself.
func From(ctx context.Context) *Caller {
	c, _ := ctx.Value(key{}).(*Caller)
	return c
}
