package apiserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pannier/pannier/cluster"
	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/consul/tokens"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/devices"
	"github.com/pannier/pannier/host/internal/doctor"
	"github.com/pannier/pannier/host/internal/leader/route"
	"github.com/pannier/pannier/host/internal/leader/watcher"
	"github.com/pannier/pannier/host/internal/peer/pki"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/secrets"
	"github.com/pannier/pannier/host/internal/secrets/rotation"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/handover"
	"github.com/pannier/pannier/host/internal/system/tracing"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/storage"
)

// Config has the dependencies and settings of a Server.
type Config struct {
	// Socket is the path of the API's unix socket.
	Socket string
	// CredentialsSocket is from where units load their workloads' secrets.
	CredentialsSocket string
	// Group is the name or number of a group that may use the socket besides root and the agent's own user; empty:
	// none.
	Group string
	// HTTPAddress, host:port, serves health, metrics and public keys. Port 0 is any free one; empty: it is not
	// served.
	HTTPAddress string
	Logger      hclog.Logger
	// Metrics is where the server registers its metrics. It is served at /v1/metrics.
	Metrics *prometheus.Registry

	// Parts of Status.
	Name, Version, Datacenter, DataDir string
	StartedAt                          time.Time
	// VolumesDir is where the host mounts volumes.
	VolumesDir string
	// Health returns what is wrong with the agent; empty: it is ready. It is called often and must not block.
	Health func() (reasons []string)
	// Leftovers are mounts and directories that no record explains.
	Leftovers func() []string
	// Stop begins to stop the agent and returns. With plugins, the plugins and the drivers that the agent runs are
	// stopped too, whatever the configuration says. It returns what else is stopped.
	Stop func(plugins bool) Ending
	// Reload reads the agent's configuration again, and takes over what of it can be.
	Reload func(ctx context.Context) (Reloaded, error)
	// Patient is this machine with the agent's configuration, for Examine.
	Patient func() doctor.Patient
	// Diagnosis describes the agent, for Diagnose.
	Diagnosis func() (Diagnosis, error)
	// Monitor writes what the agent logs, from a level, to a writer that does not block, until stop is called.
	Monitor func(level hclog.Level, lines io.Writer) (stop func())
	// Upgrade begins to replace the agent's program, and returns once that is known to be usable. Upgraded returns how
	// the last attempt ended; nil: there was none.
	Upgrade  func(ctx context.Context) (handover.Outcome, error)
	Upgraded func() *handover.Outcome
	// Sockets are what the server listens on, and hands over to the next program; nil: none of another program.
	Sockets *handover.Sockets
	// Traces records calls.
	Traces *tracing.Tracer

	Plugins Plugins
	// Uses are what of the configuration calls plugins.
	Uses        func() []catalog.Use
	Ledger      Ledger
	Controllers *controllers.Controllers
	Drivers     *drivers.Registry
	Devices     *devices.Registry
	Workloads   Workloads
	// Watcher releases claims and collects garbage; nil: this agent is no server.
	Watcher  *watcher.Watcher
	Services Services
	Tokens   Tokens
	// JWKS is the JSON Web Key Set (RFC 7517) that verifies the JWTs with which services log in to Consul; nil:
	// this agent is no server.
	JWKS func(ctx context.Context) ([]byte, error)
	// SigningKeys are the keys of the JWTs; nil: this agent is no server.
	SigningKeys *tokens.Authority
	Events      *events.Bus
	// Sealer encrypts volumes' secrets before they enter the ledger.
	Sealer *secrets.Sealer
	// SecretsKeys are the Sealer's keys; nil: this agent is no server.
	SecretsKeys *rotation.Keeper

	// Leader finds the leader; nil: this host is in no cluster.
	Leader *route.Router
	// Agents sends requests of the API to other agents, https:// and an agent's name; nil: this host is in no cluster.
	Agents http.RoundTripper
	// Nodes calls other nodes; nil: this host is in no cluster, or is no server.
	Nodes Nodes
	// Raft, Discovery and Heard are nil on a standalone host. Raft and Heard are also nil on a node that is not a
	// server.
	Raft      *cluster.Node
	Discovery Discovery
	// Heard returns when a node's last heartbeat was answered, and until when its claims are kept without another one;
	// zero: not known.
	Heard func(node string) (at, keepsTo time.Time)

	// Port accepts calls over TLS, besides the socket; nil: there is none.
	Port *transport.Port
	// Certs make HTTPAddress HTTPS, which serves the API too; nil: plain HTTP without the API.
	Certs *pki.Certs
	// ACL finds what a token's secret allows; nil: ACLs are off, and every caller may do everything.
	ACL *acl.Resolver
	// SocketRoot allows root and the agent's own user everything over the socket without a token.
	SocketRoot bool
	// Reconcile compares what runs on this host with the ledger, after that was restored; nil in a cluster.
	Reconcile func(ctx context.Context) error
	// AuditPath is the audit log's file; empty: there is none.
	AuditPath string
}

// Ending describes what is stopped with the agent.
type Ending struct {
	Plugins   bool // and the drivers that the agent runs
	Workloads bool // before the agent
}

// Reloaded is what became of a configuration that was read again.
type Reloaded struct {
	// Changes are the blocks and keys that are taken over, or refused.
	Changes []Change
	// Restart names the other keys and blocks that have changed. They need a restart of the agent.
	Restart []string
}

// Change is what became of a changed block or key.
type Change struct {
	// Block such as plugin "x".
	Block string
	// Outcome is added, changed or removed, with ", waits" if it waits; or refused.
	Outcome string
	// Message says what it waits for, or why it is refused; it may be empty.
	Message string
}

// String describes the change in one line.
func (c Change) String() string {
	if c.Message == "" {
		return c.Block + ": " + c.Outcome
	}
	return c.Block + ": " + c.Outcome + ": " + c.Message
}

// String describes all changes in one line.
func (r Reloaded) String() string {
	var all []string
	for _, c := range r.Changes {
		all = append(all, c.String())
	}
	if len(r.Restart) > 0 {
		all = append(all, "needs a restart of the agent: "+strings.Join(r.Restart, ", "))
	}
	return cmp.Or(strings.Join(all, "; "), "nothing has changed")
}

const (
	// maxRequest bounds a request, in bytes. The ledger accepts less.
	maxRequest = 4 << 20
	// compressMin is the size in bytes from which answers are compressed. Most callers are on this machine, and a
	// compressor takes 0.8 MiB.
	compressMin = 64 << 10
	// closeGrace is how long running calls may take to end when the server is closed. Then they are cancelled, and
	// have cancelGrace to return.
	closeGrace  = 3 * time.Second
	cancelGrace = 2 * time.Second
)

// Server serves the API. Open starts it, Close ends it.
type Server struct {
	cfg    Config
	log    hclog.Logger
	access access
	calls  *callMetrics
	limits *transport.Limits
	audit  *auditLog // nil: there is none
	// readers read the metrics.
	readers *readers
	// doors is read-locked by each request of a plugin, which no HTTP server knows, and locked by Close for good.
	doors        sync.RWMutex
	examinations examinations

	// closing is cancelled by Close at once, running when running calls are cancelled.
	closing, running context.Context
	stopNew, stopAll context.CancelCauseFunc

	api, peers, public *http.Server
	httpAddress        string
	serving            sync.WaitGroup
	closeOnce          sync.Once
	closeErr           error
}

// New makes a server; Open serves.
func New(cfg Config) *Server {
	s := &Server{
		cfg: cfg, log: cfg.Logger, readers: &readers{from: map[string]int{}},
		examinations: examinations{turn: make(chan struct{}, 1), made: map[rights]*hostv1.ExamineResponse{}},
	}
	if cfg.Sockets == nil {
		s.cfg.Sockets = handover.NewSockets(nil)
	}
	if s.limits = transport.NewLimits(cfg.Logger); cfg.Port != nil {
		s.limits = cfg.Port.Limits()
	}
	if cfg.AuditPath != "" {
		s.audit = newAuditLog(cfg.AuditPath, cfg.Logger)
	}
	s.closing, s.stopNew = context.WithCancelCause(context.Background())
	s.running, s.stopAll = context.WithCancelCause(context.Background())
	return s
}

// Open listens and starts to serve. It fails if another agent answers on the socket, the group does not exist, or an
// address is taken. Nothing is left open then.
func (s *Server) Open(ctx context.Context) (err error) {
	defer func() { //nolint:contextcheck // what is open is closed also when ctx has ended
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.access, err = newAccess(s.cfg.Group); err != nil {
		return err
	}
	if err := s.register(); err != nil {
		return err
	}
	if s.audit != nil {
		if err := s.audit.open(); err != nil {
			return err
		}
	}
	if s.cfg.ACL == nil {
		s.log.Info("ACLs are off: every caller may do everything; acl { enabled = true } turns them on")
	}
	socket, err := listenUnix(ctx, s.cfg.Sockets, s.cfg.Socket, s.access.group)
	if err != nil {
		return err
	}
	// Both listeners are opened before either is served: answers contain the address.
	var tcp net.Listener
	if s.cfg.HTTPAddress != "" {
		tcp, err = s.cfg.Sockets.Listen("http", s.cfg.HTTPAddress, s.cfg.Certs == nil, func() (net.Listener, error) {
			var listen net.ListenConfig
			return listen.Listen(ctx, "tcp", s.cfg.HTTPAddress)
		})
		if err != nil {
			return errors.Join(fmt.Errorf("listen for health, metrics and public keys: %w", err), socket.Close())
		}
		s.httpAddress = tcp.Addr().String()
	}
	s.api = s.httpServer(s.apiHandler())
	s.api.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return withConn(connContext(ctx, c), c)
	}
	s.serve(s.api, s.limits.Listener(socket))
	if s.cfg.Port != nil {
		s.peers = s.httpServer(s.api.Handler)
		s.peers.Protocols.SetHTTP2(true)
		s.peers.ConnContext = s.cfg.Port.ConnContext
		s.serve(s.peers, s.cfg.Port.HTTP())
	}
	if tcp != nil {
		tcp = s.limits.Listener(tcp)
		s.public = s.httpServer(s.publicHandler())
		s.public.ConnContext = withConn
		if s.cfg.Certs != nil {
			s.public.Handler = s.overTLS(s.api.Handler)
			s.public.Protocols.SetHTTP2(true)
			tcp = tls.NewListener(tcp, s.cfg.Certs.Public("h2", "http/1.1"))
		}
		s.serve(s.public, tcp)
	}
	return nil
}

// HTTPAddress is the address of health, metrics and public keys; empty: none.
func (s *Server) HTTPAddress() string { return s.httpAddress }

// Close stops the server. New calls are refused, streams end at once, and running calls are cancelled after
// closeGrace. It is bounded in time and may be called again.
func (s *Server) Close() error {
	s.closeOnce.Do(func() {
		s.stopNew(call.ErrStopping)
		grace := time.AfterFunc(closeGrace, func() { s.stopAll(call.ErrStopping) })
		defer grace.Stop()
		ctx, cancel := context.WithTimeout(context.Background(), closeGrace+cancelGrace)
		defer cancel()
		var errs []error
		for _, server := range []*http.Server{s.api, s.peers, s.public} {
			if server == nil {
				continue
			}
			err := server.Shutdown(ctx)
			if errors.Is(err, context.DeadlineExceeded) {
				err = server.Close() // close the connections of calls that have not ended
			}
			errs = append(errs, err)
		}
		errs = append(errs, s.closeDoors(ctx))
		s.stopAll(call.ErrStopping)
		s.serving.Wait()
		if s.audit != nil {
			errs = append(errs, s.audit.close())
		}
		s.closeErr = errors.Join(errs...)
	})
	return s.closeErr
}

// Ledger is the cluster's replicated state (cluster.Node).
type Ledger interface {
	call.Ledger
	Watch(ctx context.Context, topics ...state.Topic) <-chan struct{}
	SetNodeDuty(ctx context.Context, duty command.SetNodeDuty) (claim.Node, error)
	SetNodeStatus(ctx context.Context, name string, status claim.NodeStatus, by string) (command.SetNodeStatusResult,
		error)
	DeleteNode(ctx context.Context, name string) (command.DeleteNodeResult, error)
	// DeleteDownNode keeps a node that has come back since it was read.
	DeleteDownNode(ctx context.Context, read claim.Node) (command.DeleteNodeResult, error)
	RegisterVolume(ctx context.Context, v claim.Volume) (command.RegisterVolumeResult, error)
	DeregisterVolume(ctx context.Context, ref claim.VolumeRef, force bool) (command.DeregisterVolumeResult, error)
	PutSnapshot(ctx context.Context, s claim.Snapshot) (command.PutSnapshotResult, error)
	DeleteSnapshot(ctx context.Context, driver, id string) ([]claim.SnapshotRef, error)
	Size() int64

	BootstrapACL(ctx context.Context, t ledger.Token, reset uint64) (ledger.Token, error)
	PutACLPolicies(ctx context.Context, policies ...ledger.Policy) ([]ledger.Policy, error)
	DeleteACLPolicies(ctx context.Context, names ...string) ([]string, error)
	PutACLRoles(ctx context.Context, roles ...ledger.Role) ([]ledger.Role, error)
	DeleteACLRoles(ctx context.Context, names ...string) ([]string, error)
	PutACLTokens(ctx context.Context, tokens ...ledger.Token) ([]ledger.Token, error)
	DeleteACLTokens(ctx context.Context, accessors ...string) ([]ledger.Token, error)
}

// Nodes asks other nodes about their mounts, while this server leads (peer.Nodes).
type Nodes interface {
	// ExpandVolume grows the mounts of a volume on a node. It may be repeated.
	ExpandVolume(ctx context.Context, node string, v claim.Volume, minBytes, maxBytes int64) (places int, err error)
	VolumeStats(ctx context.Context, node string, v claim.Volume) (storage.Stats, error)
	// Release reads how the release of a claim's workload goes on its node.
	Release(ctx context.Context, c claim.Claim) (workload.Release, error)
}

// Plugins are the plugin processes of this host (supervisor.Supervisor).
type Plugins interface {
	Status() []supervisor.Status
	Swap(ctx context.Context, name string, grace *time.Duration) (supervisor.Status, error)
	Restart(ctx context.Context, name string, grace *time.Duration) (supervisor.Status, error)
	Canary(ctx context.Context, name string, percent int) (supervisor.Status, error)
	Promote(ctx context.Context, name string, grace *time.Duration) (supervisor.Status, error)
	Rollback(ctx context.Context, name, to string, grace *time.Duration) (supervisor.Status, error)
	Pin(ctx context.Context, name, which string) (supervisor.Status, error)
	Unpin(ctx context.Context, name string) (supervisor.Status, error)
	// Remove ends a plugin whose file is gone.
	Remove(ctx context.Context, name string) error
	RemoveFiles(name string) error
	// Verify tests a file without a swap.
	Verify(ctx context.Context, path string) (supervisor.Verified, error)
	// Log is the path of a plugin's log.
	Log(name string) (string, error)
}

// Workloads are those of this node (workload.Manager).
type Workloads interface {
	Start(ctx context.Context, spec workload.Spec, opts workload.Options) (workload.Workload, error)
	// Check says what Start would do, and changes nothing.
	Check(ctx context.Context, spec workload.Spec) (workload.Check, error)
	Stop(ctx context.Context, ref claim.WorkloadRef, reason string, progress func(workload.Step)) (workload.Workload,
		error)
	// Force lets the release of a workload unmount what drivers do not.
	Force(ref claim.WorkloadRef, by string) error
	Running(ref claim.WorkloadRef, pid, caller int) error
	Get(ref claim.WorkloadRef) (workload.Workload, error)
	List() []workload.Workload
	Placements(ref claim.VolumeRef) []workload.Placement
	// Holders lists who has the volumes of a workload, besides the host.
	Holders(ref claim.WorkloadRef) ([]workload.Holder, error)
	// InspectTokens asks Consul about the tokens of a workload's services.
	InspectTokens(ctx context.Context, ref claim.WorkloadRef) ([]servicesteps.Inspection, error)
	// WorkloadsUsing names what is mounted or attached by a driver.
	WorkloadsUsing(driver string) []string
	// FailedTries counts the tries to release a workload that failed.
	FailedTries() int64
}

// Services registers the services of this node's workloads in Consul (services.Registrar).
type Services interface {
	// Problems returns, by consul block, what keeps services from being in sync; empty: nothing.
	Problems() map[string]string
	// Conflict says whose registration stands in the place of a service; empty: none.
	Conflict(consul, id string) string
	// Forget removes what a node that is gone for good has left in the Consuls of this one.
	Forget(ctx context.Context, node string) error
}

// Tokens are the Consul tokens of the cluster's services (tokens.Authority).
type Tokens interface {
	// List returns the tokens of a namespace and a workload; empty: of all.
	List(ctx context.Context, namespace, workload string) ([]tokens.Listed, error)
	// Sweep revokes tokens whose workload is gone. A dry run only lists them.
	Sweep(ctx context.Context, dryRun bool) (tokens.Report, error)
}

// Discovery is this agent's gossip (discovery.Discovery).
type Discovery interface {
	Members() []discovery.Member
	Member(name string) (discovery.Member, bool)
	Join(addresses ...string) (int, error)
	ForceLeave(name string, prune bool) error
	Leave() error
	ListKeys() (discovery.Keys, error)
	InstallKey(key string) (discovery.Keys, error)
	UseKey(key string) (discovery.Keys, error)
	RemoveKey(key string) (discovery.Keys, error)
}
