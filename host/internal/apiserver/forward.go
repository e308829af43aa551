package apiserver

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/host/internal/system/tracing"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

// leaderServices are answered by the leader; all others by the agent that is called.
var leaderServices = map[string]bool{
	hostv1connect.VolumeServiceName:   true,
	hostv1connect.TokenServiceName:    true,
	hostv1connect.NodeServiceName:     true,
	hostv1connect.OperatorServiceName: true,
	hostv1connect.SecretsServiceName:  true,
	hostv1connect.SystemServiceName:   true,
	hostv1connect.ACLServiceName:      true,
}

const (
	// callHeader has the key of a call, which all attempts to forward one request share.
	callHeader = "X-Pannier-Call"
	// electionTimeout bounds how long a request is retried while no leader is found.
	electionTimeout = 30 * time.Second
)

var (
	errMisdirected = errors.New("this server does not lead")
	errDeposed     = errors.New("this server stopped leading before it had an answer")
)

// refusals writes errors in the caller's protocol.
var refusals = connect.NewErrorWriter()

// forward has the leader, this agent or another one, answer the requests that need it. A request is repeated if the
// leader changes, even if this agent had begun to answer it: every call of the API may be repeated.
func (s *Server) forward(next http.Handler) http.Handler {
	if s.cfg.Leader == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := methodOf(r.URL.Path)
		switch {
		case method == nil || !leaderServices[string(method.Parent().FullName())]:
			next.ServeHTTP(w, r)
		case r.Header.Get(call.ForwardedHeader) != "":
			if !s.cfg.Leader.Leads() || !answer(w, r, "", method, next) {
				w.WriteHeader(http.StatusMisdirectedRequest)
			}
		case streams(method) && s.cfg.Leader.Leads():
			next.ServeHTTP(w, r)
		default:
			s.toLeader(w, r, method, next)
		}
	})
}

// answeredElsewhere reports whether another server will answer the request.
func (s *Server) answeredElsewhere(method protoreflect.MethodDescriptor, r *http.Request) bool {
	return s.cfg.Leader != nil && leaderServices[string(method.Parent().FullName())] &&
		r.Header.Get(call.ForwardedHeader) == "" && !s.cfg.Leader.Leads()
}

// streams reports whether a call is a stream, so that its answer cannot be held back and discarded.
func streams(method protoreflect.MethodDescriptor) bool {
	return method.IsStreamingClient() || method.IsStreamingServer()
}

// toLeader has a request answered by the leader, which may be this agent.
func (s *Server) toLeader(w http.ResponseWriter, r *http.Request, method protoreflect.MethodDescriptor,
	here http.Handler,
) {
	ctx := r.Context()
	refuse := func(err error) {
		// If writing fails the caller is gone.
		_ = refusals.Write(w, r, call.WithCode(ctx, err))
	}
	rewind := func() {}
	if !method.IsStreamingClient() {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest+frameHeader))
		if err != nil {
			refuse(connect.NewError(connect.CodeResourceExhausted,
				fmt.Errorf("read the request: %w: at most %d bytes are accepted", err, maxRequest)))
			return
		}
		rewind = func() { r.Body = io.NopCloser(bytes.NewReader(body)) }
		rewind()
		r.ContentLength = int64(len(body))
		if s.cfg.Ledger != nil && wantsStale(method, r.Header, body) {
			here.ServeHTTP(w, r)
			return
		}
	}
	key := rand.Text()
	err := s.cfg.Leader.Do(ctx, route.Call{
		Search: electionTimeout, Once: method.IsStreamingClient(),
		Here: func(context.Context) error {
			rewind()
			if !answer(w, r, key, method, here) {
				return &route.NotLeader{Err: errDeposed}
			}
			return nil
		},
		There: func(ctx context.Context, m route.Member) error {
			caller, _ := ctx.Value(admittedKey{}).(*call.Caller)
			rewind()
			headers := http.Header{call.ForwardedHeader: {caller.From(s.cfg.Name)}, callHeader: {key}}
			end := s.cfg.Traces.Forward(r, headers, "forward to the leader", tracing.Node.String(s.cfg.Name))
			err := s.proxy(w, r, m, headers, streams(method))
			end(err)
			return err
		},
	})
	if err != nil {
		refuse(fmt.Errorf("forward the call to the server that leads: %w", err))
	}
}

// proxy has a request answered by another server. If the error is a *route.NotLeader nothing was written. An answer
// that is no stream is passed on when it is complete: a server that ends may break it off.
func (s *Server) proxy(w http.ResponseWriter, r *http.Request, m route.Member, headers http.Header, stream bool,
) (err error) {
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "https", m.Addr, ""
			maps.Copy(p.Out.Header, headers)
		},
		Transport:     s.cfg.Leader.Transport(),
		FlushInterval: -1, // streams
		ErrorLog:      s.log.StandardLogger(nil),
		ModifyResponse: func(resp *http.Response) error {
			if resp.StatusCode == http.StatusMisdirectedRequest {
				return errMisdirected
			}
			if stream {
				return nil
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				return err
			}
			resp.Body = struct {
				io.Reader
				io.Closer
			}{bytes.NewReader(body), resp.Body}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, failed error) {
			err = &route.NotLeader{Err: failed, Unreached: !errors.Is(failed, errMisdirected) && !errors.Is(failed, errDeposed)}
		},
	}
	proxy.ServeHTTP(w, r)
	return err
}

// answer answers a request here, as the leader. It returns false, with nothing written, if this agent stopped leading
// before it was done. Streams are always answered.
func answer(w http.ResponseWriter, r *http.Request, key string, method protoreflect.MethodDescriptor,
	here http.Handler,
) bool {
	a := &attempt{key: key}
	r = r.WithContext(context.WithValue(r.Context(), attemptKey{}, a))
	if streams(method) {
		here.ServeHTTP(w, r)
		return true
	}
	here.ServeHTTP(&undecided{ResponseWriter: w, leave: func() bool { return a.deposed }}, r)
	if a.deposed {
		clear(w.Header())
	}
	return !a.deposed
}

// attempt is one of this agent's attempts to answer a request.
type attempt struct {
	key     string // the key that all attempts share; empty: it is in the request's header
	deposed bool   // this agent stopped leading
}

type attemptKey struct{}

// attemptOf returns the attempt that a context belongs to, or a new one.
func attemptOf(ctx context.Context) *attempt {
	if a, ok := ctx.Value(attemptKey{}).(*attempt); ok {
		return a
	}
	return &attempt{}
}

// admittedKey is the context key of the caller that the gate has identified (*call.Caller).
type admittedKey struct{}

// methodOf returns the call of the API that a path names, or nil.
func methodOf(path string) protoreflect.MethodDescriptor {
	service, name, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !ok {
		return nil
	}
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil
	}
	if s, ok := found.(protoreflect.ServiceDescriptor); ok {
		return s.Methods().ByName(protoreflect.Name(name))
	}
	return nil
}

// frameHeader is the length of what gRPC and Connect streams put before a message: a byte of flags and the message's
// length.
const frameHeader = 5

// wantsStale reports whether a request is a query that accepts a stale answer. It is false for a request that
// cannot be decoded: the agent that answers it reports the error.
func wantsStale(method protoreflect.MethodDescriptor, header http.Header, body []byte) bool {
	input, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil {
		return false
	}
	query, ok := input.New().Interface().(call.Query)
	if !ok {
		return false
	}
	kind := header.Get("Content-Type")
	packed := header.Get("Content-Encoding") == "gzip"
	if strings.HasPrefix(kind, "application/grpc") || strings.HasPrefix(kind, "application/connect") {
		if len(body) < frameHeader || int(binary.BigEndian.Uint32(body[1:])) != len(body)-frameHeader {
			return false
		}
		packed = body[0]&1 != 0
		body = body[frameHeader:]
	}
	if packed {
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return false
		}
		if body, err = io.ReadAll(io.LimitReader(z, maxRequest)); err != nil {
			return false
		}
	}
	err = decode(body, query, strings.Contains(kind, "json"))
	return err == nil && query.GetRead().GetStale()
}
