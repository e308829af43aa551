package tokens

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/service"
)

// callTimeout bounds one question to Consul, so that a call with a longer deadline
// is tried again by the host where a connection hangs. A server without a leader
// answers after 7 s.
const callTimeout = 15 * time.Second

// Issuer is the implementation of identity.Identity. It is safe for concurrent use.
type Issuer struct {
	pool        *consul.Pool
	callTimeout time.Duration
	settings    atomic.Pointer[settings]
}

// settings are a configuration in use.
type settings struct {
	config
	limiter *rate.Limiter // of all that is written
}

// New makes an issuer with an empty configuration. Close it.
func New() *Issuer {
	i := &Issuer{pool: consul.NewPool(), callTimeout: callTimeout}
	i.use(config{rate: defaultRate})
	return i
}

// Close ends all connections.
func (i *Issuer) Close() error {
	return i.pool.Close()
}

// Validate is sdk.Validator.
func (i *Issuer) Validate(_ context.Context, raw []byte) error {
	_, err := parseConfig(raw)
	return err
}

// Configure is sdk.Configurer.
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
	return status.Errorf(codes.ResourceExhausted, "%s on Consul %q: more than the plugin's rate of %d a second were asked for", what, c.Name, i.settings.Load().rate)
}

// privileged makes a client with the token that may write ACLs. Without one the error
// is FailedPrecondition and says what needs it.
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

// consistent reads what the leader knows now.
func consistent(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}
