package workload

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// consul is Consul with its plugins, in a file. Tokens are minted, or with life set returned by
// login.
type consul struct {
	*hooks
	ledger *ledger
	file   string
	wrong  func(format string, args ...any)

	mu      sync.Mutex
	state   consulState
	life    time.Duration
	changes int // how often Changed was called
}

type consulState struct {
	Tokens   map[string]given // by accessor
	Services map[string]registration.Instance
	// Intentions have the callers that each instance lets in.
	Intentions map[string][]string
	Statsd     string // of the proxy-defaults
	CA         string
}

// given is one of Consul's tokens.
type given struct {
	claim.Token
	Secret string
}

func openConsul(file string, l *ledger, h *hooks, wrong func(string, ...any)) (*consul, error) {
	c := &consul{
		hooks: h, ledger: l, file: file, wrong: wrong,
		state: consulState{
			Tokens: map[string]given{}, Services: map[string]registration.Instance{}, Intentions: map[string][]string{},
		},
	}
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	return c, json.Unmarshal(raw, &c.state)
}

func (c *consul) change(do func(s *consulState) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := do(&c.state); err != nil {
		return err
	}
	raw, err := json.Marshal(c.state)
	if err == nil {
		err = os.WriteFile(c.file+".new", raw, 0o600)
	}
	if err == nil {
		err = os.Rename(c.file+".new", c.file)
	}
	return err
}

func (c *consul) tokens() []given {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.state.Tokens), func(a, b given) int { return a.CreatedAt.Compare(b.CreatedAt) })
}

func (c *consul) services() map[string]registration.Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.state.Services)
}

// forget loses all tokens, like a Consul whose state is lost.
func (c *consul) forget() error {
	return c.change(func(s *consulState) error { clear(s.Tokens); return nil })
}

func (c *consul) Intend(ctx context.Context, t claim.Token) error {
	return c.call(ctx, "intend", t.Service, func() error {
		_, err := cluster.Apply(ctx, c.ledger.node, &command.PutToken{Token: t})
		return err
	})
}

func (c *consul) Derive(ctx context.Context, t claim.Token) (claim.Token, string, error) {
	var out given
	err := c.call(ctx, "derive", t.Service, func() error {
		if !c.ledger.intends(t) {
			c.wrong("Consul is asked for token %s of service %q, and the ledger does not know of it", t.ID, t.Service)
		}
		return c.change(func(s *consulState) error {
			var found bool
			if out, found = s.Tokens[t.ID]; found {
				return nil // minted before
			}
			t.Accessor, t.CreatedAt = t.ID, time.Now()
			if c.life > 0 {
				t.Accessor, t.ExpiresAt = newID(), time.Now().Add(c.life)
			}
			out = given{Token: t, Secret: newID()}
			s.Tokens[t.Accessor] = out
			return nil
		})
	})
	return out.Token, out.Secret, err
}

func (c *consul) Read(ctx context.Context, _ claim.Token, secret string) error {
	return c.call(ctx, "read", "", func() error {
		if !slices.ContainsFunc(c.tokens(), func(g given) bool { return g.Secret == secret }) {
			return status.Error(codes.NotFound, "no such token")
		}
		return nil
	})
}

func (c *consul) Revoke(ctx context.Context, t claim.Token, secret string) error {
	return c.call(ctx, "revoke", t.Service, func() error {
		err := c.change(func(s *consulState) error {
			maps.DeleteFunc(s.Tokens, func(_ string, g given) bool {
				return g.ID == t.ID && (g.Accessor == g.ID || g.Secret == secret)
			})
			return nil
		})
		if err != nil {
			return err
		}
		_, err = cluster.Apply(ctx, c.ledger.node, &command.DeleteTokens{IDs: []string{t.ID}})
		return err
	})
}

func (c *consul) Forget(ctx context.Context, t claim.Token) error {
	return c.call(ctx, "forget", t.Service, func() error {
		_, err := cluster.Apply(ctx, c.ledger.node, &command.DeleteTokens{IDs: []string{t.ID}})
		return err
	})
}

func (c *consul) OnNode(_ context.Context, node string) ([]claim.Token, error) {
	return slices.DeleteFunc(c.ledger.tokens(), func(t claim.Token) bool { return t.Node != node }), nil
}

func (c *consul) Check(svc *service.Service) error {
	if consul := svc.Consul; consul != service.DefaultConsul && consul != "east" {
		return fmt.Errorf("%w %q", errNoBlock, consul)
	}
	return nil
}

var errNoBlock = errors.New("the agent has no consul block")

func (c *consul) Register(ctx context.Context, _ string, i registration.Instance) (proxyID string, err error) {
	err = c.call(ctx, "register", i.Service.Name, func() error {
		return c.change(func(s *consulState) error {
			s.Services[i.ID] = i
			if len(i.Service.Intentions) > 0 {
				s.Intentions[i.ID] = i.Service.Intentions
			}
			return nil
		})
	})
	if i.Service.Proxied() {
		proxyID = i.ID + "-sidecar-proxy"
	}
	return proxyID, err
}

func (c *consul) Deregister(ctx context.Context, _, id string) error {
	name := id[strings.LastIndex(id, ":")+1:]
	return c.call(ctx, "deregister", name, func() error {
		return c.change(func(s *consulState) error { delete(s.Services, id); return nil })
	})
}

func (c *consul) SetIntentions(ctx context.Context, _ string, i registration.Instance) error {
	return c.call(ctx, "intentions", i.Service.Name, func() error {
		return c.change(func(s *consulState) error {
			if s.Intentions[i.ID] = i.Service.Intentions; len(i.Service.Intentions) == 0 {
				delete(s.Intentions, i.ID)
			}
			return nil
		})
	})
}

func (c *consul) intentions() map[string][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.state.Intentions)
}

// file is the bootstrap file that Bootstrap makes.
type file struct {
	Request bootstrap.Request
	Token   string
	Statsd  any // of the proxy's configuration
}

func (c *consul) Bootstrap(ctx context.Context, _ string, req bootstrap.Request) (made bootstrap.Result,
	err error,
) {
	n := len(req.ProxyID) - len("-sidecar-proxy")
	i, found := c.services()[req.ProxyID[:max(0, n)]]
	if !found {
		c.wrong("a bootstrap is asked for proxy %q, which is not registered", req.ProxyID)
	}
	err = c.call(ctx, "bootstrap", i.Service.Name, func() error {
		secret, err := os.ReadFile(req.TokenFile)
		if err != nil {
			return status.Error(codes.FailedPrecondition, err.Error())
		}
		f := file{Request: req, Token: string(secret)}
		c.mu.Lock()
		if f.Statsd = any(c.state.Statsd); c.state.Statsd == "" {
			f.Statsd = nil
		}
		c.mu.Unlock()
		if s := i.Service.Connect.SidecarService; s != nil && s.Proxy != nil {
			f.Statsd = cmp.Or(s.Proxy.Config["envoy_statsd_url"], f.Statsd)
		}
		if req.Dir != "" {
			made.Files = map[string][]byte{"beside.json": []byte(c.beside())}
		}
		made.Bootstrap, err = json.Marshal(f)
		return err
	})
	return made, err
}

// beside is the content of the file that a bootstrap names.
func (c *consul) beside() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return "CA " + c.state.CA
}

func (c *consul) Changed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
}

func (c *consul) changed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes
}

// intends reports whether the ledger has the token, of a workload that runs.
func (l *ledger) intends(t claim.Token) bool {
	w, err := l.workload(t.Workload)
	return err == nil && w.Status == claim.Running &&
		slices.ContainsFunc(l.tokens(), func(o claim.Token) bool { return o.ID == t.ID && o.SamePurpose(t) })
}

// newID makes the ID of a token.
func newID() string {
	meshed := service.Service{Connect: &service.Connect{}}
	return new(servicesteps.Steps).NewRecord(claim.WorkloadRef{}, meshed).Token.ID
}
