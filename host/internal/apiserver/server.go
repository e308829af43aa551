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

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/acls"
	"github.com/pannier/pannier/host/internal/apiserver/agentapi"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/apiserver/drivers"
	"github.com/pannier/pannier/host/internal/apiserver/nodes"
	"github.com/pannier/pannier/host/internal/apiserver/operator"
	"github.com/pannier/pannier/host/internal/apiserver/plugins"
	"github.com/pannier/pannier/host/internal/apiserver/volumes"
	"github.com/pannier/pannier/host/internal/apiserver/workloads"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/handover"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/tracing"
)

// Config has the settings of a Server, what it needs to know its callers and to pass their calls on, and the handlers
// of the API's services.
type Config struct {
	// Socket is the path of the API's unix socket.
	Socket string
	// Group is the name or number of a group that may use the socket besides root and the agent's own user; empty:
	// none.
	Group string
	// SocketRoot allows root and the agent's own user everything over the socket without a token.
	SocketRoot bool
	// HTTPAddress, host:port, serves health, metrics and public keys. Port 0 is any free one; empty: it is not
	// served.
	HTTPAddress string
	// Sockets are what the server listens on, and hands over to the next program; nil: none of another program.
	Sockets *handover.Sockets
	// Port accepts calls over TLS, besides the socket; nil: there is none.
	Port *transport.Port
	// Certs make HTTPAddress HTTPS, which serves the API too; nil: plain HTTP without the API.
	Certs *pki.Certs

	Name   string // of this agent
	Logger hclog.Logger
	// Metrics is where the server registers its metrics. It is served at /v1/metrics.
	Metrics *prometheus.Registry
	// Traces records calls.
	Traces *tracing.Tracer
	// Audit is the audit log; nil: there is none. The server closes it.
	Audit *AuditLog
	// Health returns what is wrong with the agent; empty: it is ready. It is called often and must not block.
	Health func() (reasons []string)
	// Votes reports whether this server has a vote; nil: it is no server.
	Votes func() bool
	// JWKS is the JSON Web Key Set (RFC 7517) that verifies the JWTs with which services log in to Consul; nil:
	// this agent is no server.
	JWKS func(ctx context.Context) ([]byte, error)
	// ACL finds what a token's secret allows; nil: ACLs are off, and every caller may do everything.
	ACL *acl.Resolver
	// Ledger is nil on an agent that is no server.
	Ledger call.Ledger
	// Leader finds the leader; nil: this host is in no cluster.
	Leader *route.Router

	Volumes   volumes.Handler
	Workloads workloads.Handler
	Drivers   drivers.Handler
	Plugins   plugins.Handler
	Nodes     nodes.Handler
	Operator  operator.Handler
	ACLs      acls.Handler
	Agent     agentapi.Handler
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
	// readers read the metrics.
	readers *readers
	// doors is read-locked by each request of a plugin, which no HTTP server knows, and locked by Close for good.
	doors sync.RWMutex

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
	}
	s.cfg.Agent.SetServer(s.HTTPAddress, s.asCaller, &s.cfg.Plugins, &s.cfg.Drivers, &s.cfg.Workloads)
	if cfg.Sockets == nil {
		s.cfg.Sockets = handover.NewSockets(nil)
	}
	if s.limits = transport.NewLimits(cfg.Logger); cfg.Port != nil {
		s.limits = cfg.Port.Limits()
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
	if err := s.cfg.Audit.open(); err != nil {
		return err
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
	s.api = s.httpServer(s.apiHandler(s.services))
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
		errs = append(errs, s.cfg.Audit.close())
		s.closeErr = errors.Join(errs...)
	})
	return s.closeErr
}
