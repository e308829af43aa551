package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
	"github.com/pannier/pannier/internal/trusted"
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
	if err := trusted.Permit(path, fs.ModeSocket, 0o660, -1, group); err != nil {
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
		Votes   bool     `json:"votes,omitempty"` // this agent is a server with a vote
	}{Status: "ok", Reasons: s.cfg.Health(), Votes: s.cfg.Votes != nil && s.cfg.Votes()}
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

// apiHandler returns what the unix socket serves; calls serves the API's calls.
func (s *Server) apiHandler(calls func() http.Handler) http.Handler {
	public := http.NewServeMux()
	s.handlePublic(public)
	services := sync.OnceValue(calls) // with the first call: it takes a tenth of the agent's start
	here := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/pannier.") {
			services().ServeHTTP(w, r)
			return
		}
		public.ServeHTTP(w, r)
	})
	return s.handOver(asknode.Answering(s.cfg.Name, s.gate(s.forward(here))))
}

// services returns what serves the API's calls.
func (s *Server) services() http.Handler {
	mux := http.NewServeMux()
	options := connect.WithHandlerOptions(
		connect.WithInterceptors(append(s.cfg.Traces.Connect(), interceptor{s})...),
		connect.WithHandlerOptions(codecs()...),
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
	mux.Handle(hostv1connect.NewClusterServiceHandler(&s.cfg.Nodes, options))
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

const (
	// readTimeout is how long a caller may take to read an answer that everybody may have.
	readTimeout = 5 * time.Second
	// The number of callers that may read the metrics at a time: from one address, and from all. Each holds one answer
	// in memory.
	maxReaders, maxReadersInAll = 4, 64
)

// heldAnswer is an answer in memory.
type heldAnswer struct {
	header http.Header
	code   int
	bytes.Buffer
}

func (a *heldAnswer) Header() http.Header { return a.header }

func (a *heldAnswer) WriteHeader(code int) { a.code = code }

// prompt answers when h has ended, and cuts off a caller that does not read the answer within readTimeout.
func prompt(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a := heldAnswer{header: w.Header(), code: http.StatusOK}
		h(&a, r)
		w.Header().Set("Content-Length", strconv.Itoa(a.Len()))
		control := http.NewResponseController(w)
		_ = control.SetWriteDeadline(time.Now().Add(readTimeout)) // an error of any of these: the caller is gone
		w.WriteHeader(a.code)
		_, _ = w.Write(a.Bytes())
		if control.Flush() == nil {
			_ = control.SetWriteDeadline(time.Time{}) // for the next request on this connection
		}
	}
}

// readers counts who reads the metrics, by address.
type readers struct {
	mu   sync.Mutex
	from map[string]int
	all  int
}

// shared runs h for a bounded number of callers at a time, so that one of them cannot keep the others out.
func (c *readers) shared(h http.HandlerFunc) http.HandlerFunc {
	refused := prompt(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, fmt.Sprintf("too many callers read this: at most %d from one address may, and %d in all", maxReaders,
			maxReadersInAll), http.StatusServiceUnavailable)
	})
	return func(w http.ResponseWriter, r *http.Request) {
		from, _, _ := net.SplitHostPort(r.RemoteAddr) // empty: the unix socket, or a plugin
		c.mu.Lock()
		full := c.from[from] >= maxReaders || c.all >= maxReadersInAll
		if !full {
			c.from[from]++
			c.all++
		}
		c.mu.Unlock()
		if full {
			refused(w, r)
			return
		}
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.all--
			if c.from[from]--; c.from[from] == 0 {
				delete(c.from, from)
			}
		}()
		h(w, r)
	}
}

// byOwnName answers requests to this host only. A page in a browser could let its own name resolve to the agent's
// address, and read what is answered to that name (DNS rebinding). It has no such power over an IP address.
func (s *Server) byOwnName(next http.Handler) http.Handler {
	own := map[string]bool{"": true, "localhost": true, strings.ToLower(s.cfg.Name): true} // HTTP/1.0 may send none
	if hostname, err := os.Hostname(); err == nil {
		own[strings.ToLower(hostname)] = true
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.TrimSuffix(host, "."))
		if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || own[host] {
			next.ServeHTTP(w, r)
			return
		}
		prompt(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, fmt.Sprintf("this host is not %q: use its address, localhost or its name %q", call.Shortened(host),
				s.cfg.Name), http.StatusMisdirectedRequest)
		})(w, r)
	})
}
