package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/secrets"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

// Config is what a Server works with.
type Config struct {
	// Socket is the path of the API's unix socket.
	Socket string
	// Group, a name or a number, may use the socket beside root and the agent's own
	// user; empty: nobody may.
	Group string
	// HTTPAddress, host:port, serves health, metrics and public keys. Port 0: any free one;
	// empty: nothing is served there.
	HTTPAddress string
	Logger      hclog.Logger
	// Metrics takes the server's metrics, and is served at /v1/metrics.
	Metrics *prometheus.Registry

	// What Status tells of the agent.
	Name, Version, Datacenter, DataDir string
	StartedAt                          time.Time
	// VolumesDir is where the host mounts volumes.
	VolumesDir string
	// Health says what is wrong with the agent now; nothing: it is ready. It is
	// called often and must not block.
	Health func() (reasons []string)
	// Leftovers are mounts and directories that no record explains.
	Leftovers func() []string
	// Stop begins the agent's end and returns; plugins ends the plugins and the drivers
	// that the agent runs too, whatever the configuration says. It tells what else ends.
	Stop func(plugins bool) Ending

	Plugins     Plugins
	Ledger      Ledger
	Controllers Controllers
	Drivers     Drivers
	Devices     Devices
	Workloads   Workloads
	Releaser    Releaser
	Services    Services
	Tokens      Tokens
	// JWKS is the JSON Web Key Set (RFC 7517) that checks the JWTs with which workloads'
	// services log in to Consul; nil where no Consul has an auth method.
	JWKS   func(ctx context.Context) ([]byte, error)
	Events *events.Bus
	// Sealer seals volumes' secrets before they enter the ledger.
	Sealer *secrets.Sealer
	// SecretsKeys are the keys that it seals with; nil: this agent is no server.
	SecretsKeys SecretsKeys

	// Leader answers for the ledger where this agent does not lead; nil: it is alone.
	Leader Leader
	// Nodes are the cluster's; nil: this agent is alone, or never leads.
	Nodes Nodes
	// Raft, Discovery and Heartbeats are nil where there is none: on a node that is no server,
	// and on a host that is alone.
	Raft       Raft
	Discovery  Discovery
	Heartbeats Heartbeats
	// Collector clears away what nothing needs any more.
	Collector Collector

	// Port takes calls over TLS beside the socket; nil: there is none.
	Port Port
	// Certs make HTTPAddress HTTPS, which serves the API too; nil: plain HTTP, without the API.
	Certs Certs
	// ACL says what a token's secret allows (acl.Resolver); nil: ACLs are off, and whoever
	// may call may do everything.
	ACL ACL
	// SocketRoot lets root, and the agent's own user, do everything over the socket
	// without a token.
	SocketRoot bool
	// AuditPath is the file of the audit log; empty: there is none.
	AuditPath string
}

// Ending is what ends with the agent.
type Ending struct {
	Plugins   bool // and the drivers that it runs
	Workloads bool // they are stopped before
}

const (
	// maxRequest bounds a request, in bytes. The ledger takes less.
	maxRequest = 4 << 20
	// compressMin is from where on an answer is compressed for a caller that takes it
	// so, in bytes. Most callers are on this machine, and a compressor takes 0.8 MiB.
	compressMin = 64 << 10
	// closeGrace is how long calls under way may take to end when the server is
	// closed; then they are cancelled, and have cancelGrace.
	closeGrace  = 3 * time.Second
	cancelGrace = 2 * time.Second
)

// errStopping is why calls are cut off when the server is closed.
var errStopping = errors.New("the agent is stopping: call again when it is back")

// Server serves the API. Open starts it, Close ends it.
type Server struct {
	cfg    Config
	log    hclog.Logger
	access access
	calls  *callMetrics
	counts counts
	audit  *auditLog // nil: there is none

	// closing ends with Close, at once; running when calls under way are cancelled.
	closing, running context.Context
	stopNew, stopAll context.CancelCauseFunc

	api, peers, public *http.Server
	httpAddress        string
	serving            sync.WaitGroup
	collectors         []prometheus.Collector
	closeOnce          sync.Once
	closeErr           error
}

// New makes a server; Open serves.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, log: cfg.Logger}
	if cfg.AuditPath != "" {
		s.audit = newAuditLog(cfg.AuditPath, cfg.Logger)
	}
	s.closing, s.stopNew = context.WithCancelCause(context.Background())
	s.running, s.stopAll = context.WithCancelCause(context.Background())
	return s
}

// Open listens and begins to serve. It fails where another agent answers on the
// socket, the group does not exist, or an address cannot be had; nothing is then
// left open.
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
		s.log.Info("ACLs are off: whoever may call may do everything; acl { enabled = true } turns them on")
	}
	socket, err := listenUnix(ctx, s.cfg.Socket, s.access.group)
	if err != nil {
		return err
	}
	// Both are had before either is served: calls tell the address.
	var tcp net.Listener
	if s.cfg.HTTPAddress != "" {
		var listen net.ListenConfig
		if tcp, err = listen.Listen(ctx, "tcp", s.cfg.HTTPAddress); err != nil {
			return errors.Join(fmt.Errorf("listen for health, metrics and public keys: %w", err), socket.Close())
		}
		s.httpAddress = tcp.Addr().String()
	}
	s.api = s.httpServer(s.apiHandler())
	s.api.ConnContext = connContext
	s.serve(s.api, socket)
	if s.cfg.Port != nil {
		s.peers = s.httpServer(s.api.Handler)
		s.peers.Protocols.SetHTTP2(true)
		s.peers.ConnContext = s.cfg.Port.ConnContext
		s.serve(s.peers, s.cfg.Port.HTTP())
	}
	if tcp != nil {
		s.public = s.httpServer(s.publicHandler())
		if s.cfg.Certs != nil {
			s.public.Handler = s.overTLS(s.api.Handler)
			s.public.Protocols.SetHTTP2(true)
			tcp = tls.NewListener(tcp, s.cfg.Certs.Public("h2", "http/1.1"))
		}
		s.serve(s.public, tcp)
	}
	return nil
}

// HTTPAddress is where health, metrics and public keys are served; empty: nowhere on TCP.
func (s *Server) HTTPAddress() string { return s.httpAddress }

func (s *Server) httpServer(h http.Handler) *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // gRPC
	return &http.Server{
		Handler: h, Protocols: protocols,
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return s.running },
		ErrorLog:    s.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
}

func (s *Server) serve(server *http.Server, l net.Listener) {
	s.serving.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("the API is not served any more", "address", l.Addr(), "error", err)
		}
	})
}

// apiHandler is what the unix socket serves.
func (s *Server) apiHandler() http.Handler {
	mux := http.NewServeMux()
	options := connect.WithHandlerOptions(
		connect.WithInterceptors(interceptor{s}),
		connect.WithCodec(strictJSON{}),
		connect.WithReadMaxBytes(maxRequest),
		connect.WithCompressMinBytes(compressMin),
		connect.WithRecover(s.recovered),
	)
	mux.Handle(hostv1connect.NewVolumeServiceHandler(volumeService{s}, options))
	mux.Handle(hostv1connect.NewWorkloadServiceHandler(workloadService{s}, options))
	mux.Handle(hostv1connect.NewDriverServiceHandler(driverService{s}, options))
	mux.Handle(hostv1connect.NewDeviceServiceHandler(deviceService{s}, options))
	mux.Handle(hostv1connect.NewPluginServiceHandler(pluginService{s}, options))
	mux.Handle(hostv1connect.NewTokenServiceHandler(tokenService{s}, options))
	mux.Handle(hostv1connect.NewAgentServiceHandler(agentService{s}, options))
	mux.Handle(hostv1connect.NewACLServiceHandler(aclService{s}, options))
	mux.Handle(hostv1connect.NewNodeServiceHandler(nodeService{s}, options))
	mux.Handle(hostv1connect.NewMemberServiceHandler(memberService{s}, options))
	mux.Handle(hostv1connect.NewOperatorServiceHandler(operatorService{s}, options))
	mux.Handle(hostv1connect.NewSecretsServiceHandler(secretsService{s}, options))
	mux.Handle(hostv1connect.NewSystemServiceHandler(systemService{s}, options))
	s.handlePublic(mux)
	return s.forward(mux)
}

// publicHandler is what anybody may read.
func (s *Server) publicHandler() http.Handler {
	mux := http.NewServeMux()
	s.handlePublic(mux)
	return mux
}

// overTLS tells handlers who is at the other end of a connection, where a certificate
// was shown.
func (s *Server) overTLS(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithValue(r.Context(), peerKey{}, unknownPeer(errNoCertificate))
		if cert, err := s.cfg.Certs.PeerOf(*r.TLS); err == nil { // a bad one did not get here
			ctx = transport.WithPeer(ctx, cert)
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// Close ends the server: no new calls, streams end at once, calls under way have
// a moment to end and are then cancelled. It is bounded and may be called again.
func (s *Server) Close() error {
	s.closeOnce.Do(func() {
		s.stopNew(errStopping)
		grace := time.AfterFunc(closeGrace, func() { s.stopAll(errStopping) })
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
				err = server.Close() // what does not end by itself is cut off
			}
			errs = append(errs, err)
		}
		s.stopAll(errStopping)
		s.serving.Wait()
		s.unregister()
		errs = append(errs, s.ReopenAudit())
		s.closeErr = errors.Join(errs...)
	})
	return s.closeErr
}
