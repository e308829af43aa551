package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pannier/pannier/host/internal/apiserver/acls"
	"github.com/pannier/pannier/host/internal/apiserver/asknode"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/handover"
	"github.com/pannier/pannier/internal/unixsocket"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

// listenUnix creates the API's socket for its owner and one group (-1: the owner's), unless the program before has
// handed it over. It replaces the socket of an agent that was killed.
func listenUnix(ctx context.Context, sockets *handover.Sockets, path string, group int) (net.Listener, error) {
	l, err := sockets.Listen("api", path, true, func() (net.Listener, error) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("make the socket's directory: %w", err)
		}
		if err := unixsocket.Clear(ctx, path); errors.Is(err, unixsocket.ErrAnswers) {
			return nil, fmt.Errorf("another agent already answers on %s: stop it, or set another socket and data_dir in this "+
				"one's configuration", path)
		} else if err != nil {
			return nil, err
		}
		var listen net.ListenConfig
		return listen.Listen(ctx, "unix", path)
	})
	if err != nil {
		return nil, fmt.Errorf("listen on the API's socket: %w", err)
	}
	// Until both are done the umask decides who can connect. Each call checks its caller.
	if err = os.Chown(path, -1, group); err == nil {
		err = os.Chmod(path, 0o660)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set who may use the API's socket: %w", err), l.Close())
	}
	return l, nil
}

// handlePublic adds the paths that everybody may read.
func (s *Server) handlePublic(mux *http.ServeMux) {
	metrics := promhttp.HandlerFor(s.cfg.Metrics, promhttp.HandlerOpts{
		ErrorLog: metricsLog{s}, ErrorHandling: promhttp.ContinueOnError,
	})
	mux.HandleFunc("GET /v1/health", prompt(s.health))
	mux.HandleFunc("GET /v1/metrics", s.readers.shared(prompt(metrics.ServeHTTP)))
	mux.HandleFunc("GET /.well-known/jwks.json", prompt(s.jwks))
}

// health answers 200 while the agent is ready, else 503 with the reasons.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	answer := struct {
		Status  string   `json:"status"` // ok or unavailable
		Reasons []string `json:"reasons,omitempty"`
	}{Status: "ok", Reasons: s.cfg.Health()}
	code := http.StatusOK
	if len(answer.Reasons) > 0 {
		answer.Status, code = "unavailable", http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // fails only if the caller is gone
}

// jwksTimeout bounds reading the ledger for the key set.
const jwksTimeout = 10 * time.Second

// jwks returns the public keys that verify what the cluster signs, also before something is signed: Consul is set up
// with them first. They may be cached: the key does not change.
func (s *Server) jwks(w http.ResponseWriter, r *http.Request) {
	if s.cfg.JWKS == nil {
		http.Error(w, "this agent is no server: the servers of the cluster have the keys (pannier operator raft list-peers)",
			http.StatusNotFound)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), jwksTimeout)
	defer cancel()
	keys, err := s.cfg.JWKS(ctx)
	if err != nil {
		s.log.Warn("the public keys could not be read", "error", err)
		http.Error(w, "the keys cannot be read now: see the agent's log", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "public, max-age=300")
	_, _ = w.Write(keys) // fails only if the caller is gone
}

// metricsLog logs promhttp's errors.
type metricsLog struct{ *Server }

func (l metricsLog) Println(v ...any) { l.log.Warn("the metrics are not complete", "error", v) }

func (s *Server) httpServer(h http.Handler) *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // gRPC
	return &http.Server{
		Handler: h, Protocols: protocols,
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeaders,
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		BaseContext: func(net.Listener) context.Context { return s.running }, ConnState: handover.Track,
		ErrorLog: s.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
}

func (s *Server) serve(server *http.Server, l net.Listener) {
	s.serving.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("serving the API failed", "address", l.Addr(), "error", err)
		}
	})
}

// apiHandler returns what the unix socket serves.
func (s *Server) apiHandler() http.Handler {
	public := http.NewServeMux()
	s.handlePublic(public)
	services := sync.OnceValue(s.services) // with the first call: it takes a tenth of the agent's start
	return s.handOver(asknode.Answering(s.cfg.Name, s.gate(s.forward(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/pannier.") {
			services().ServeHTTP(w, r)
			return
		}
		public.ServeHTTP(w, r)
	})))))
}

// services returns what serves the API's calls.
func (s *Server) services() http.Handler {
	mux := http.NewServeMux()
	options := connect.WithHandlerOptions(
		connect.WithInterceptors(append(s.cfg.Traces.Connect(), interceptor{s})...),
		connect.WithCodec(strictJSON{}),
		connect.WithReadMaxBytes(maxRequest),
		connect.WithCompressMinBytes(compressMin),
		connect.WithRecover(s.recovered),
	)
	mux.Handle(hostv1connect.NewVolumeServiceHandler(&s.cfg.Volumes, options))
	mux.Handle(hostv1connect.NewWorkloadServiceHandler(&s.cfg.Workloads, options))
	mux.Handle(hostv1connect.NewDriverServiceHandler(&s.cfg.Drivers, options))
	mux.Handle(hostv1connect.NewDeviceServiceHandler(&s.cfg.Plugins, options))
	mux.Handle(hostv1connect.NewPluginServiceHandler(&s.cfg.Plugins, options))
	mux.Handle(hostv1connect.NewTokenServiceHandler(&s.cfg.Workloads, options))
	mux.Handle(hostv1connect.NewAgentServiceHandler(&s.cfg.Agent, options))
	mux.Handle(hostv1connect.NewACLServiceHandler(&s.cfg.ACLs, options, onlyIf(s.cfg.ACL != nil, acls.ErrOff)))
	mux.Handle(hostv1connect.NewNodeServiceHandler(&s.cfg.Nodes, options))
	mux.Handle(hostv1connect.NewMemberServiceHandler(&s.cfg.Nodes, options,
		onlyIf(s.cfg.Nodes.Discovery != nil, call.ErrAlone, hostv1connect.MemberServiceListMembersProcedure)))
	mux.Handle(hostv1connect.NewOperatorServiceHandler(&s.cfg.Operator, options))
	mux.Handle(hostv1connect.NewSecretsServiceHandler(&s.cfg.Operator, options))
	mux.Handle(hostv1connect.NewSystemServiceHandler(&s.cfg.Operator, options))
	return mux
}

// onlyIf refuses a service's calls, but some, where they are not possible.
func onlyIf(possible bool, otherwise error, always ...string) connect.HandlerOption {
	return connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if !possible && !slices.Contains(always, req.Spec().Procedure) {
				return nil, otherwise
			}
			return next(ctx, req)
		}
	}))
}

// publicHandler returns what everybody may read, for plain HTTP.
func (s *Server) publicHandler() http.Handler {
	mux := http.NewServeMux()
	s.handlePublic(mux)
	return s.handOver(s.byOwnName(mux))
}

// overTLS adds the caller's certificate, if it showed one, to the context of requests.
func (s *Server) overTLS(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithValue(r.Context(), peerKey{}, call.UnknownPeer(errNoCertificate))
		if cert, err := s.cfg.Certs.PeerOf(*r.TLS); err == nil { // a bad certificate fails the handshake
			ctx = transport.WithPeer(ctx, cert)
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
