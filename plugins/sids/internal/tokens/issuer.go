// Package tokens gets Consul tokens for services in one of two ways: it mints them with its own token that has acl
// = "write", or it logs in with a JWT that the host has signed, and then needs no token.
//
// Invariants:
//   - a token has one service identity, is local, and names its owner in its description, so that a forgotten
//     token can be found and revoked;
//   - the accessor of a minted token is the caller's id: however often a call is repeated, in whatever process,
//     there is one token;
//   - no token, key or JWT is in an error, and the plugin logs nothing;
//   - the plugin keeps nothing between calls except connections.
package tokens

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/service"
)

// callTimeout bounds one request to Consul, so that the host can retry a call with a longer deadline if a
// connection hangs. A server without a leader answers after 7 s.
const callTimeout = 15 * time.Second

// Issuer implements identity.Identity. It is safe for concurrent use.
type Issuer struct {
	sdk.Config[config]
	pool        *consul.Pool
	callTimeout time.Duration
}

// New returns an issuer with an empty configuration. It has to be closed.
func New() *Issuer {
	i := &Issuer{pool: consul.NewPool(), callTimeout: callTimeout}
	_ = i.Configure(context.Background(), []byte("{}")) // it has defaults
	return i
}

// Close closes all connections.
func (i *Issuer) Close() error {
	return i.pool.Close()
}

// admit waits until one more write is within the rate.
func (i *Issuer) admit(ctx context.Context, c service.Consul, what string) error {
	conf := i.Get()
	err := conf.limiter.Wait(ctx)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return consul.Error(ctx.Err(), c, "%s", what)
	}
	return status.Errorf(codes.ResourceExhausted, "%s on Consul %q: the plugin's rate of %d a second is exceeded", what,
		c.Name, conf.Rate)
}

// privileged returns a client with the token that may write ACLs. If there is none, the error is FailedPrecondition and
// names what needs it.
func (i *Issuer) privileged(c service.Consul, what string) (*api.Client, error) {
	path := i.Get().tokenFiles[c.Name]
	if path == "" {
		return nil, status.Errorf(codes.FailedPrecondition,
			"%s on Consul %q: the plugin has no token for it: set %s to a file with the secret id of a token whose policy is acl = \"write\"", what, c.Name, key(c.Name))
	}
	secret, err := consul.Token(path)
	if err != nil {
		return nil, consul.Error(err, c, "%s", what)
	}
	return i.pool.Client(c, secret)
}

func writing(ctx context.Context) *api.WriteOptions {
	return (&api.WriteOptions{}).WithContext(ctx)
}

func reading(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{}).WithContext(ctx)
}

// consistent makes a read return the leader's current state.
func consistent(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}

// config is the agent's block plugin "sids" { config { } }.
type config struct {
	TokenFile string  `json:"token_file" doc:"file with a token that may write ACLs, for minting"`
	Rate      int     `json:"rate" default:"500" doc:"how many tokens are written in a second at most"`
	Consul    consuls `json:"consul" doc:"by the name of a consul block: its token_file"`

	// tokenFiles are the files of both, by the names of the agent's consul blocks. They are read at each use, so they may
	// be replaced.
	tokenFiles map[string]string
	limiter    *rate.Limiter // of all writes
}

// Validate implements sdk.Config's.
func (c *config) Validate() error {
	if c.Rate < 1 || c.Rate > math.MaxInt32 {
		return fmt.Errorf("rate: got %d, want a whole number of tokens a second, 1 or more", c.Rate)
	}
	c.limiter = rate.NewLimiter(rate.Limit(c.Rate), c.Rate)
	c.tokenFiles = map[string]string{}
	for name, block := range c.Consul {
		c.tokenFiles[name] = block.TokenFile
	}
	if c.TokenFile != "" {
		if _, twice := c.tokenFiles[service.DefaultConsul]; twice {
			return errors.New("token_file: given twice")
		}
		c.tokenFiles[service.DefaultConsul] = c.TokenFile
	}
	for name, file := range c.tokenFiles {
		if !filepath.IsAbs(file) {
			return fmt.Errorf("%s: got %q, want an absolute path", key(name), file)
		}
	}
	return nil
}

// consuls are the blocks consul "NAME" { }.
type consuls map[string]consulBlock

type consulBlock struct {
	TokenFile string `json:"token_file"`
}

// UnmarshalJSON reads one object by name, or a list of them if there are several blocks.
func (c *consuls) UnmarshalJSON(raw []byte) error {
	if raw[0] != '[' {
		raw = slices.Concat([]byte("["), raw, []byte("]"))
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	var blocks []map[string]consulBlock
	err := d.Decode(&blocks)
	*c = consuls{}
	for _, block := range blocks {
		for name := range block {
			if _, twice := (*c)[name]; twice {
				err = errors.Join(err, fmt.Errorf("the block %q is given twice", name))
			}
		}
		maps.Copy(*c, block)
	}
	return err
}

// key returns the operator's settings for one Consul.
func key(consul string) string {
	if consul == service.DefaultConsul {
		return "token_file"
	}
	return fmt.Sprintf("token_file of consul %q", consul)
}

// TokenFile returns the file that a configuration of the plugin names for the token of a Consul; empty: none.
func TokenFile(raw []byte, consul string) (string, error) {
	var c sdk.Config[config]
	err := c.Configure(context.Background(), raw)
	return c.Get().tokenFiles[consul], err
}
