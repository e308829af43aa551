// Package servicesteps has the steps that give a workload its services: register, identify and
// bootstrap, each with its undo, and what keeps the services of a running workload in order.
//
// What must stay true:
//
//   - Every token that Consul may have is in the journal and in the ledger before Consul is asked
//     for it.
//   - No secret is in the journal.
//   - A failure of Consul never ends a workload that runs.
package servicesteps

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/ports"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// Tokens gives services their tokens, and revokes them. The caller retries: the errors that are
// worth it have the gRPC codes Unavailable, DeadlineExceeded or ResourceExhausted.
type Tokens interface {
	// Intend records in the ledger that Consul will be asked for t. The tokens of a start are
	// recorded with its claims instead. It may be repeated.
	Intend(ctx context.Context, t claim.Token) error
	// Derive asks Consul for the token that the ledger has as t.ID and records its accessor. It
	// may be repeated; a token that was minted comes back as it is. No secret: Consul has ACLs
	// disabled, and the service needs no token.
	Derive(ctx context.Context, t claim.Token) (derived claim.Token, secret string, err error)
	// Read reads t from this node's Consul agent by its secret. NotFound: the agent does not know it, or not yet.
	// Internal: the secret is another token's.
	Read(ctx context.Context, t claim.Token, secret string) error
	// Revoke ends a token and removes its record once Consul has confirmed that it is gone. An
	// unknown token is success. secret may be empty for a minted token.
	Revoke(ctx context.Context, t claim.Token, secret string) error
	// Forget removes the record of a token that Consul has never made: it was not asked, or has refused.
	Forget(ctx context.Context, t claim.Token) error
	// OnNode lists the ledger's tokens of a node.
	OnNode(ctx context.Context, node string) ([]claim.Token, error)
}

// Services registers services in Consul. consul is the name of the agent's consul block. The
// caller retries as with Tokens.
type Services interface {
	// Check fails where the agent has no block of the service's consul, or no plugin for one of its steps.
	Check(svc *service.Service) error
	// Register makes Consul's registration equal to the instance, and returns its proxy's id,
	// empty without a proxy. Owner is filled in.
	Register(ctx context.Context, consul string, i registration.Instance) (proxyID string, err error)
	// Deregister removes an instance; one that is not registered is success.
	Deregister(ctx context.Context, consul, id string) error
	// SetIntentions makes Consul allow callers of the service what the instance asks for; without intentions, what
	// it has asked for before is taken back. Register does the former itself.
	SetIntentions(ctx context.Context, consul string, i registration.Instance) error
	// Bootstrap makes the file that a service's proxy is started with, and the files that it names.
	Bootstrap(ctx context.Context, consul string, req bootstrap.Request) (bootstrap.Result, error)
	// Changed is called after a change of this node's instances (workload.Manager.Instances).
	Changed()
}

// Steps takes the service steps of all workloads of a node.
type Steps struct {
	Node       string
	Datacenter string // this node's, for ${node.datacenter}
	Tokens     Tokens
	Services   Services
	SecretsDir *secretsdir.Dir
	Ports      *ports.Allocator
	// IdentityTimeout overrides Limits.Identity, by the name of the agent's consul block.
	IdentityTimeout map[string]time.Duration
	// CheckAddresses are the addresses, networks and names that a Consul's agent may be asked to connect to besides this
	// host's own, by the name of the block.
	CheckAddresses map[string][]string
	Events         *events.Bus
	Log            hclog.Logger
	Limits         Limits
}

// Limits are how long the steps wait. The first four include all retries; Bootstrap includes the
// time that the plugin waits for the proxy's registration (60 s).
type Limits struct {
	Register, Identity, ReadBack, Bootstrap time.Duration

	Release time.Duration // for one attempt to deregister a service or to revoke its tokens
	Retry   step.Backoff
	Look    time.Duration // from one look at a running service to the next
	Ready   time.Duration // that a proxy may be away
}

// DefaultLimits are a host's limits.
var DefaultLimits = Limits{
	Register:  2 * time.Minute,
	Identity:  5 * time.Minute,
	ReadBack:  10 * time.Second,
	Bootstrap: 2 * time.Minute,
	Release:   10 * time.Second,
	Retry:     step.Backoff{Min: 100 * time.Millisecond, Max: 30 * time.Second},
	Look:      5 * time.Minute,
	Ready:     10 * time.Second,
}

// The files in a service's folder.
const (
	tokenFile     = "si_token"
	bootstrapFile = "envoy_bootstrap.json"
)

// The sockets that a proxy makes there: nobody but the service's user and root enters the folder.
const (
	adminSocket = "admin.sock"
	readySocket = "ready.sock"
)

// Service is one service of a workload while the host works on it.
type Service struct {
	*Record
	// These stay as they are when the spec changes.
	Name       string
	Consul     string // the name of the agent's consul block
	registers  bool
	identified bool
	proxied    bool

	workload step.Workload
	uid      int // of the user that owns the files

	// secrets of tokens that are in no file, by token ID: they are in the host's memory only. One
	// goroutine at a time, which identifies the service or keeps or undoes that, uses it.
	secrets map[string]string
	// asked has the tokens that Consul may have made, by token ID: it was asked, and has not refused each time. The
	// same goroutine uses it.
	asked map[string]bool

	// files is held while the files of a running workload's service are checked or made again.
	files sync.Mutex

	// What keeps the service from being in order, and its proxy; the workload's lock guards them.
	problems   map[Activity]string
	proxy      ProxyStatus
	proxyEnded time.Time // the last time that its process ended
}

// New makes the services of a workload from their records; uid is the user that owns their files.
func New(w step.Workload, uid int, records []*Record) (all []*Service) {
	for _, rec := range records {
		asked := map[string]bool{}
		for _, t := range rec.tokens() {
			asked[t.ID] = len(rec.Steps) > 0 && !slices.Contains(rec.Unmade, t.ID)
		}
		all = append(all, &Service{
			Record: rec, Name: rec.Service.Name, Consul: rec.Service.Consul,
			registers: !rec.Service.IdentityOnly, identified: rec.Service.Identified(), proxied: rec.Service.Proxied(),
			asked:    asked,
			workload: w, uid: uid, secrets: map[string]string{}, problems: map[Activity]string{},
		})
	}
	return all
}

// Identified reports that the service has a token: it is native, has a sidecar, is a gateway, or only an identity.
func (s *Service) Identified() bool { return s.identified }

// Registers reports whether the service is registered in Consul; else it is only an identity.
func (s *Service) Registers() bool { return s.registers }

// Proxied reports that the service has a sidecar or is a gateway: it has a bootstrap.
func (s *Service) Proxied() bool { return s.proxied }

// Activity is what may fail for a running service.
type Activity string

// The activities of a running service.
const (
	Identifying Activity = "identity"
	Registering Activity = "registration"
	Proxying    Activity = "proxy"
)

// place is the service's folder for files with secrets.
func (s *Service) place() secretsdir.Place {
	ref := s.workload.Ref()
	return secretsdir.Place{Namespace: ref.Namespace, Workload: ref.ID, Service: s.Name}
}

// digest of a file tells later whether it is what was written.
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Status is a service of a workload as the API shows it.
type Status struct {
	Name    string
	ID      string // in Consul
	ProxyID string // its sidecar's, or its own where it is a gateway; empty: none
	Consul  string // the name of the agent's consul block
	Port    int
	// Of its token; empty and zero: none.
	Accessor  string    `proto:"token_accessor"`
	ExpiresAt time.Time `proto:"token_expires_at"`
	// Paths on the host; empty: none.
	TokenFile, BootstrapFile string
	// Of its proxy: ports, or paths of sockets; 0 and empty: none.
	AdminPort, ReadyPort     int
	AdminSocket, ReadySocket string
	// Upstreams are where its sidecar listens for the program, IP:PORT or unix:///PATH, by the destination's name.
	Upstreams map[string]string
	// Message is what keeps it from being in order: a renewal or a registration that fails, a proxy that is not ready.
	Message string
	Proxy   ProxyStatus
}

// Status returns the service's status; dir is the folder of the workload's secrets. The
// workload's lock is held.
func (s *Service) Status(dir string) Status {
	st := Status{
		Name: s.Name, ID: s.ID, ProxyID: s.ProxyID, Consul: s.Consul, Port: number(s.Service.Port),
		Accessor: s.Token.Accessor, ExpiresAt: s.Token.ExpiresAt, AdminPort: s.AdminPort, ReadyPort: s.ReadyPort,
		Proxy: s.proxy,
	}
	if s.TokenSum != "" {
		st.TokenFile = filepath.Join(dir, s.Name, tokenFile)
	}
	if len(s.BootstrapSums) > 0 {
		st.BootstrapFile = filepath.Join(dir, s.Name, bootstrapFile)
	}
	if len(s.BootstrapSums) > 0 && s.administered() {
		st.AdminSocket, st.ReadySocket = s.socket(dir, adminSocket), s.socket(dir, readySocket)
	}
	st.Upstreams = addresses(s.Service.Upstreams())
	var all []string
	for _, what := range []Activity{Registering, Identifying, Proxying} {
		if p := s.problems[what]; p != "" {
			all = append(all, p)
		}
	}
	st.Message = strings.Join(all, "; ")
	return st
}

// addresses are those that a sidecar listens on for its upstreams, by name; nil: there are none. Of several of one name
// it is the first.
func addresses(upstreams []service.Upstream) map[string]string {
	var all map[string]string
	for _, u := range upstreams {
		if _, taken := all[u.DestinationName]; taken {
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		if u.LocalBindSocketPath != "" {
			all[u.DestinationName] = "unix://" + u.LocalBindSocketPath
			continue
		}
		host := cmp.Or(u.LocalBindAddress, "127.0.0.1")
		all[u.DestinationName] = net.JoinHostPort(host, strconv.Itoa(int(u.LocalBindPort)))
	}
	return all
}
