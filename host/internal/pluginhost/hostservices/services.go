package hostservices

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/frontend"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// maxRequest bounds a request, in bytes.
const maxRequest = 64 << 10

// Config has the dependencies of Services.
type Config struct {
	Journal *journal.Journal // keeps the states
	// API serves a plugin's calls of the host's API. It says which plugins may make any.
	API func(w http.ResponseWriter, r *http.Request, plugin string)
	// Spans takes spans that a plugin has recorded, cut by wire.CutSpan; it must not block. May be nil: they are dropped.
	Spans func(plugin string, spans []*pluginv1.Span)
	// Full is told when a plugin's state has become full, and why a write was refused; may be nil.
	Full func(plugin, message string)
	Log  hclog.Logger
	// Door returns the service manager's unix socket of a path, nil: it has none. May be nil.
	Door func(path string) (*os.File, error)
}

// Services serves plugins. Make it with New, and Close it after the last connection to a plugin was closed.
type Services struct {
	cfg     Config
	log     hclog.Logger
	server  *http.Server
	conns   chan net.Conn
	sockets sockets
	states  *states

	closing context.Context
	close   context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	links map[string][]*grpc.ClientConn // to the processes of a plugin that have HostService, the newest last
}

// New starts to serve; plugins are added with Attach.
func New(cfg Config) *Services {
	s := &Services{
		cfg: cfg, log: cfg.Log, conns: make(chan net.Conn), links: map[string][]*grpc.ClientConn{},
		sockets: sockets{open: map[string][]*listening{}},
		states:  &states{journal: cfg.Journal, told: cfg.Full},
	}
	if cfg.Door == nil {
		s.cfg.Door = func(string) (*os.File, error) { return nil, nil } //nolint:nilnil // there is none
	}
	s.closing, s.close = context.WithCancel(context.Background())
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	s.server = &http.Server{
		Handler: s.handler(), Protocols: protocols, ReadHeaderTimeout: 10 * time.Second,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if conn, ok := c.(pluginConn); ok {
				ctx = context.WithValue(ctx, pluginKey{}, conn.plugin)
			}
			return ctx
		},
		ErrorLog: cfg.Log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	s.running.Go(func() {
		if err := s.server.Serve(listener{s}); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("plugins cannot reach the host", "error", err)
		}
	})
	return s
}

// Close ends all connections of plugins and waits for everything that New and Attach have started. The plugins'
// processes keep their listening sockets.
func (s *Services) Close() error {
	s.close()
	err := s.server.Close()
	s.running.Wait()
	return errors.Join(err, s.sockets.close())
}

// errNoFrontend means that the configuration of a plugin is for another kind.
var errNoFrontend = errors.New("its plugin block has listen or api, which are for the kind frontend: take them out")

// Admit refuses a plugin that its configuration takes for a front door, and that is none.
func Admit(door bool, kind string) error {
	if door && kind != frontend.Kind {
		return fmt.Errorf("it is of kind %s: %w", kind, errNoFrontend)
	}
	return nil
}

// Attach lets the process at the other end of conn use the services as plugin, until conn is closed. A process
// without HostService is left alone.
func (s *Services) Attach(plugin string, conn *grpc.ClientConn) {
	s.mu.Lock()
	s.links[plugin] = append(s.links[plugin], conn)
	s.mu.Unlock()
	s.running.Go(func() {
		wire.Offer(s.closing, conn, func(far net.Conn) {
			select {
			case s.conns <- pluginConn{Conn: far, plugin: plugin}:
			case <-s.closing.Done():
				_ = far.Close()
			}
		})
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, link := range s.links[plugin] {
			if link == conn {
				s.links[plugin] = append(s.links[plugin][:i:i], s.links[plugin][i+1:]...)
				break
			}
		}
	})
}

// pluginConn is a connection of a plugin.
type pluginConn struct {
	net.Conn
	plugin string
}

type pluginKey struct{}

// pluginOf returns the plugin that makes a call.
func pluginOf(ctx context.Context) string {
	name, _ := ctx.Value(pluginKey{}).(string)
	return name
}

// listener gives the connections of plugins to the HTTP server.
type listener struct{ *Services }

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closing.Done():
		return nil, http.ErrServerClosed
	}
}

// Close implements net.Listener.
func (l listener) Close() error { return nil }

// Addr implements net.Listener.
func (l listener) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "plugins"} }

// handler serves what plugins may call.
func (s *Services) handler() http.Handler {
	mux := http.NewServeMux()
	state := s.states
	handle(mux, pluginv1.StateService_Get_FullMethodName, state.get)
	handle(mux, pluginv1.StateService_Put_FullMethodName, state.put)
	handle(mux, pluginv1.StateService_Delete_FullMethodName, state.remove)
	handle(mux, pluginv1.StateService_List_FullMethodName, state.list)
	handle(mux, pluginv1.StateService_CompareAndSwap_FullMethodName, state.compareAndSwap)
	handle(mux, pluginv1.SpanService_Record_FullMethodName, s.record)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, apiPrefix) {
			http.NotFound(w, r)
			return
		}
		s.cfg.API(w, r, pluginOf(r.Context()))
	})
	return mux
}

// LimitStates bounds the states of plugins, in bytes; 0, and a plugin that is not named, have the default.
func (s *Services) LimitStates(limits map[string]int64) {
	s.states.limits.Store(&limits)
	s.states.full.Clear()
}

// record passes spans on.
func (s *Services) record(plugin string, req *pluginv1.RecordRequest) (*pluginv1.RecordResponse, error) {
	if s.cfg.Spans != nil {
		for _, span := range req.GetSpans() {
			wire.CutSpan(span)
		}
		s.cfg.Spans(plugin, req.GetSpans())
	}
	return &pluginv1.RecordResponse{}, nil
}

// apiPrefix is how the paths of the API's calls begin.
const apiPrefix = "/pannier.host.v1."

// handle serves a method for the plugin that calls it.
func handle[Req, Res any](mux *http.ServeMux, method string, do func(plugin string, req *Req) (*Res, error)) {
	mux.Handle(method, connect.NewUnaryHandlerSimple(method,
		func(ctx context.Context, req *Req) (*Res, error) {
			res, err := do(pluginOf(ctx), req)
			if code, ok := errcode.Of(err); ok {
				return nil, connect.NewError(connect.Code(code), err)
			}
			if err != nil {
				return nil, err
			}
			return res, nil
		}, connect.WithReadMaxBytes(maxRequest)))
}

// Forget deletes what the host keeps for a plugin, and closes its listening sockets.
func (s *Services) Forget(plugin string) error {
	return errors.Join(s.states.forget(plugin), s.Release(plugin, proven))
}
