package frontdoors

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/internal/kmutex"
	"github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
)

// Access is what a front door may do with the API.
type Access struct {
	// Policy is the one of the token that is made for it.
	Policy string
	// TokenFile has the secret of a token instead; absolute.
	TokenFile string
}

// Backend is the part of the agent that becomes ready after the plugins.
type Backend struct {
	// API serves a call of a plugin, with the secret of its token.
	API func(w http.ResponseWriter, r *http.Request, plugin, secret string)
	// Known fails for the secret of no token (ledger.ErrUnknownToken, ErrExpired), and if that is not known; nil: ACLs are
	// off.
	Known func(ctx context.Context, secret string) error
	// Ledger has the tokens; nil: this agent is no server.
	Ledger cluster.Ledger
}

// Config has the dependencies of Doors.
type Config struct {
	Node string
	// ReadSecret reads a file:// reference.
	ReadSecret func(ref string) (string, error)
	Log        hclog.Logger
}

// Doors are the front doors of this host.
type Doors struct {
	cfg     Config
	opened  chan struct{} // closed by Open
	backend Backend

	minting kmutex.Locks[string] // by plugin

	mu     sync.Mutex
	access map[string]Access // by plugin
	minted map[string]minted // by plugin
}

// minted is the token that was made for a plugin, or why that failed, and when.
type minted struct {
	secret string
	err    error
	at     time.Time
}

// New returns the front doors. Allow says what they may do, and Open lets their calls through.
func New(cfg Config) *Doors {
	return &Doors{cfg: cfg, opened: make(chan struct{}), access: map[string]Access{}, minted: map[string]minted{}}
}

// Allow says which plugins may call the API, and as what.
func (d *Doors) Allow(access map[string]Access) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, was := range d.access {
		if access[name] != was {
			delete(d.minted, name)
		}
	}
	d.access = access
}

// Open lets the calls through that have waited for it. It is called once.
func (d *Doors) Open(b Backend) {
	d.backend = b
	d.mu.Lock()
	for name, access := range d.access {
		if b.Known != nil && b.Ledger == nil && access.TokenFile == "" {
			d.cfg.Log.Warn("the calls of a front door are refused", "plugin", name, "error", errNoServer)
		}
	}
	d.mu.Unlock()
	close(d.opened)
}

// errNoAPI means that a plugin may not call the API.
var errNoAPI = errcode.PermissionDenied.New("the plugin may not call the API")

// refusals writes errors in the caller's protocol.
var refusals = connect.NewErrorWriter()

// API serves a plugin's call of the API. Before Open it waits. A call that the plugin makes for one of its users has
// that user's token, and depends on no token of the plugin.
func (d *Doors) API(w http.ResponseWriter, r *http.Request, plugin string) {
	d.mu.Lock()
	access, ok := d.access[plugin]
	d.mu.Unlock()
	if !ok {
		refuse(w, r, fmt.Errorf("%w: write api { policy = \"NAME\" } into the block plugin %q of the agent's configuration",
			errNoAPI, plugin))
		return
	}
	select {
	case <-d.opened:
	case <-r.Context().Done():
		return // the caller is gone
	}
	if _, ofUser := r.Header[api.TokenHeader]; ofUser {
		d.backend.API(w, r, plugin, "")
		return
	}
	secret, err := d.secret(r.Context(), plugin, access)
	if errors.Is(err, ledger.ErrPolicyNotFound) {
		refuse(w, r, fmt.Errorf("%w: there is no policy %q: pannier acl policy apply %s FILE, then pannier agent reload",
			ledger.ErrPolicyNotFound, access.Policy, printable.Argument(access.Policy)))
		return
	}
	if err != nil {
		refuse(w, r, fmt.Errorf("find the token of plugin %q: %w", plugin, err))
		return
	}
	d.backend.API(w, r, plugin, secret)
}

// refuse writes an error. If that fails the caller is gone.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	code, known := errcode.Of(err)
	if !known {
		code = errcode.Unavailable
	}
	_ = refusals.Write(w, r, connect.NewError(connect.Code(code), err))
}

// secret returns the secret of a plugin's token; empty: none is needed.
func (d *Doors) secret(ctx context.Context, plugin string, access Access) (string, error) {
	switch {
	case d.backend.Known == nil:
		return "", nil
	case access.TokenFile != "":
		return d.cfg.ReadSecret("file://" + access.TokenFile)
	case d.backend.Ledger == nil:
		return "", errNoServer
	}
	unlock, err := d.minting.Lock(ctx, plugin)
	if err != nil {
		return "", err
	}
	defer unlock()
	d.mu.Lock()
	has := d.minted[plugin]
	d.mu.Unlock()
	if has.err != nil && time.Since(has.at) < mintInterval || has.secret != "" && !d.gone(ctx, has.secret) {
		return has.secret, has.err
	}
	secret, err := d.mint(ctx, plugin, access)
	if ctx.Err() != nil {
		return "", err // the caller is gone, which says nothing about the token
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.access[plugin] == access {
		d.minted[plugin] = minted{secret, err, time.Now()}
	}
	return secret, err
}

// errNoServer means that this agent cannot make a token.
var errNoServer = errcode.FailedPrecondition.New("only servers make tokens, and this host is none: write token_file, the path of a token's secret, into the api block")

// gone reports whether a token has expired, was deleted, or was lost with a ledger that was restored.
func (d *Doors) gone(ctx context.Context, secret string) bool {
	err := d.backend.Known(ctx, secret)
	return errors.Is(err, ledger.ErrUnknownToken) || errors.Is(err, ledger.ErrExpired)
}

const (
	// tokenLife is how long a token lasts. Those of plugins that are gone end by themselves.
	tokenLife = 30 * 24 * time.Hour
	// mintInterval is the pause before another token is tried to be made, since each try writes to the ledger.
	mintInterval = time.Second
	// seenInterval is the pause between two looks whether this server has a new token too.
	seenInterval = 10 * time.Millisecond
)

// mint replaces the plugin's token by a new one, whose secret nobody but this process knows.
func (d *Doors) mint(ctx context.Context, plugin string, access Access) (string, error) {
	secret, name := rand.Text(), fmt.Sprintf("plugin %s on %s", plugin, d.cfg.Node)
	id := sha256.Sum256([]byte(name))
	t := ledger.Token{
		Accessor: fmt.Sprintf("%x", id[:8]), SecretHash: ledger.Hash(secret), Name: name, Type: ledger.Client,
		Policies: []string{access.Policy}, ExpiresAt: time.Now().Add(tokenLife),
	}
	if _, err := cluster.Apply(ctx, d.backend.Ledger,
		&command.DeleteACLTokens{Accessors: []string{t.Accessor}}); err != nil {
		return "", err
	}
	if _, err := cluster.Apply(ctx, d.backend.Ledger, &command.PutACLTokens{Tokens: []ledger.Token{t}}); err != nil {
		return "", err
	}
	for d.gone(ctx, secret) { // another server leads, and this one has not heard of it yet
		select {
		case <-time.After(seenInterval):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	return secret, nil
}
