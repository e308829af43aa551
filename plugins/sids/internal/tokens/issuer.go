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
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/service"
)

// callTimeout bounds one request to Consul, so that the host can retry a call with a longer deadline if a
// connection hangs. A server without a leader answers after 7 s.
const callTimeout = 15 * time.Second

// Issuer implements identity.Identity. It is safe for concurrent use.
type Issuer struct {
	pool        *consul.Pool
	callTimeout time.Duration
	settings    atomic.Pointer[settings]
}

// settings are the configuration in use.
type settings struct {
	config
	limiter *rate.Limiter // of all writes
}

// New returns an issuer with an empty configuration. It has to be closed.
func New() *Issuer {
	i := &Issuer{pool: consul.NewPool(), callTimeout: callTimeout}
	i.use(config{rate: defaultRate})
	return i
}

// Close closes all connections.
func (i *Issuer) Close() error {
	return i.pool.Close()
}

// Validate implements sdk.Validator.
func (i *Issuer) Validate(_ context.Context, raw []byte) error {
	_, err := parseConfig(raw)
	return err
}

// Configure implements sdk.Configurer.
func (i *Issuer) Configure(_ context.Context, raw []byte) error {
	c, err := parseConfig(raw)
	if err != nil {
		return err
	}
	i.use(c)
	return nil
}

func (i *Issuer) use(c config) {
	i.settings.Store(&settings{config: c, limiter: rate.NewLimiter(rate.Limit(c.rate), c.rate)})
}

// admit waits until one more write is within the rate.
func (i *Issuer) admit(ctx context.Context, c service.Consul, what string) error {
	err := i.settings.Load().limiter.Wait(ctx)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return consul.Error(ctx.Err(), c, "%s", what)
	}
	return status.Errorf(codes.ResourceExhausted, "%s on Consul %q: the plugin's rate of %d a second is exceeded", what,
		c.Name, i.settings.Load().rate)
}

// privileged returns a client with the token that may write ACLs. If there is none, the error is
// FailedPrecondition and says what needs it.
func (i *Issuer) privileged(c service.Consul, what string) (*api.Client, error) {
	path := i.settings.Load().tokenFiles[c.Name]
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

// defaultRate bounds the tokens that are written in a second.
const defaultRate = 500

// config is the agent's block plugin "sids" { config { } }.
type config struct {
	// tokenFiles are the files with the tokens that may write ACLs, by the names of the agent's consul blocks.
	// They are read at each use, so they may be replaced.
	tokenFiles map[string]string
	rate       int // writes a second, and the burst
}

// parseConfig parses a configuration. An error names the wrong key.
func parseConfig(raw []byte) (config, error) {
	c := config{rate: defaultRate, tokenFiles: map[string]string{}}
	keys, err := object("the configuration", raw)
	if err != nil {
		return config{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		switch name {
		case "rate":
			c.rate, err = parseRate(keys[name])
		case "token_file":
			err = c.add(service.DefaultConsul, keys[name])
		case "consul":
			err = c.addConsuls(keys[name])
		default:
			err = fmt.Errorf("unknown key %q: known are token_file, rate and consul", name)
		}
		if err != nil {
			return config{}, err
		}
	}
	return c, nil
}

func parseRate(raw json.RawMessage) (int, error) {
	var n float64
	if err := json.Unmarshal(raw, &n); err != nil || n != math.Trunc(n) || n < 1 || n > math.MaxInt32 {
		return 0, fmt.Errorf("rate: got %s, want a whole number of tokens a second, 1 or more", raw)
	}
	return int(n), nil
}

// addConsuls parses the blocks consul "NAME" { }: an object by name, or a list of such objects if there are
// several.
func (c config) addConsuls(raw json.RawMessage) error {
	var blocks []json.RawMessage
	if json.Unmarshal(raw, &blocks) != nil {
		blocks = []json.RawMessage{raw}
	}
	for _, block := range blocks {
		consuls, err := object("consul", block)
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(consuls)) {
			if err := c.addConsul(name, consuls[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c config) addConsul(name string, raw json.RawMessage) error {
	keys, err := object(fmt.Sprintf("consul %q", name), raw)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if key != "token_file" {
			return fmt.Errorf("consul %q: unknown key %q: known is token_file", name, key)
		}
		if err := c.add(name, keys[key]); err != nil {
			return err
		}
	}
	return nil
}

// add stores the token file of one Consul.
func (c config) add(consul string, raw json.RawMessage) error {
	var path string
	if err := json.Unmarshal(raw, &path); err != nil || !filepath.IsAbs(path) {
		return fmt.Errorf("%s: got %s, want an absolute path", key(consul), raw)
	}
	if _, twice := c.tokenFiles[consul]; twice {
		return fmt.Errorf("%s: given twice", key(consul))
	}
	c.tokenFiles[consul] = path
	return nil
}

// key returns the operator's settings for one Consul.
func key(consul string) string {
	if consul == service.DefaultConsul {
		return "token_file"
	}
	return fmt.Sprintf("token_file of consul %q", consul)
}

func object(what string, raw json.RawMessage) (map[string]json.RawMessage, error) {
	var out map[string]json.RawMessage
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, fmt.Errorf("%s: got %s, want a block", what, raw)
	}
	return out, nil
}
