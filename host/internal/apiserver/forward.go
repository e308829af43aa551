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
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

// Leader is the server that answers for the ledger.
type Leader interface {
	// IsLeader says whether it is this one.
	IsLeader() bool
	// LeaderURL finds it elsewhere: where its API is, and what brings requests there. sure asks for
	// more than who it was a moment ago. The error says why it is not known, as during an election.
	LeaderURL(ctx context.Context, sure bool) (*url.URL, http.RoundTripper, error)
	// Misled says that the one whose address this is did not answer as the leader.
	Misled(where *url.URL)
	// LeaderName is who answered as the leader last; empty: nobody is known.
	LeaderName() string
}

// ofLedger are the services that the leader answers; all others are of the agent that is asked.
var ofLedger = map[string]bool{
	hostv1connect.VolumeServiceName:   true,
	hostv1connect.TokenServiceName:    true,
	hostv1connect.NodeServiceName:     true,
	hostv1connect.OperatorServiceName: true,
	hostv1connect.SecretsServiceName:  true,
	hostv1connect.SystemServiceName:   true,
	hostv1connect.ACLServiceName:      true,
}

const (
	// forwardedHeader marks a request that an agent has passed on, and says for whom. It is
	// never passed on again.
	forwardedHeader = "X-Pannier-Forwarded-For"
	// callHeader is the same each time that one request is passed on, and never again.
	callHeader = "X-Pannier-Call"
	// electionTimeout bounds how long a request is passed on again while no leader is found.
	electionTimeout = 30 * time.Second
	// The pause between two attempts grows from the first to the longest.
	firstForwardPause, longestForwardPause = 50 * time.Millisecond, time.Second
)

var (
	// errMisdirected: the server that was thought to lead does not.
	errMisdirected = errors.New("the server that was asked does not lead any more")
	// errLeadsNow: this server leads, since the request came in.
	errLeadsNow = errors.New("this server leads now")
)

// refusals writes errors as the caller's protocol has them.
var refusals = connect.NewErrorWriter()

// forward passes requests for the ledger on to the leader where this agent is not it. A
// request is repeated over an election, also one that this agent began to answer as the leader;
// each call of the API may be.
func (s *Server) forward(next http.Handler) http.Handler {
	if s.cfg.Leader == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := methodOf(r.URL.Path)
		switch {
		case method == nil || !ofLedger[string(method.Parent().FullName())]:
			next.ServeHTTP(w, r)
		case r.Header.Get(forwardedHeader) != "":
			if !s.cfg.Leader.IsLeader() || !answer(w, r, "", method, next) {
				w.WriteHeader(http.StatusMisdirectedRequest)
			}
		case streams(method) && s.cfg.Leader.IsLeader():
			next.ServeHTTP(w, r)
		default:
			s.passOn(w, r, method, next) //nolint:contextcheck // the request has its context
		}
	})
}

// streams says that a call has no answer that could be held back.
func streams(method protoreflect.MethodDescriptor) bool {
	return method.IsStreamingClient() || method.IsStreamingServer()
}

// passOn brings one request to the leader, which may be this agent, and its answer back.
func (s *Server) passOn(w http.ResponseWriter, r *http.Request, method protoreflect.MethodDescriptor, here http.Handler) {
	refuse := func(err error) {
		// An answer that cannot be written has nobody who reads it.
		_ = refusals.Write(w, r, withCode(r.Context(), err))
	}
	out := &forwarded{Server: s, method: method}
	if !method.IsStreamingClient() {
		var err error
		if out.body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest+frameHeader)); err != nil {
			refuse(connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("read the request: %w: at most %d bytes are taken", err, maxRequest)))
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(out.body))
		if s.cfg.Ledger != nil && wantsStale(method, r.Header, out.body) {
			here.ServeHTTP(w, r)
			return
		}
	}
	call := rand.Text()
	// isHere has the request answered by this agent, which leads, and says whether it did until then.
	isHere := func() bool {
		if out.body != nil {
			r.Body = io.NopCloser(bytes.NewReader(out.body))
		}
		if answer(w, r, call, method, here) {
			return true
		}
		out.inVain = errMisdirected
		return false
	}
	if s.cfg.Leader.IsLeader() && isHere() {
		return
	}
	asker, err := s.asker(r)
	if err != nil {
		refuse(err)
		return
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.Header.Set(forwardedHeader, asker)
			p.Out.Header.Set(callHeader, call)
			p.Out.Host = ""
		},
		Transport:     out,
		FlushInterval: -1, // streams
		ErrorLog:      s.log.StandardLogger(nil),
	}
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, err error) {
		switch {
		case !errors.Is(err, errLeadsNow):
			refuse(fmt.Errorf("pass the call on to the server that leads: %w", err))
		case !isHere():
			proxy.ServeHTTP(w, r)
		}
	}
	proxy.ServeHTTP(w, r)
}

// answer has a request answered by this agent, as the leader. It says false, and nothing is
// answered, where the agent led no more before it was done; a stream is answered in any case.
func answer(w http.ResponseWriter, r *http.Request, call string, method protoreflect.MethodDescriptor, here http.Handler) bool {
	a := &answering{call: call}
	r = r.WithContext(context.WithValue(r.Context(), answeringKey{}, a))
	if streams(method) {
		here.ServeHTTP(w, r)
		return true
	}
	here.ServeHTTP(heldBack{w, a}, r)
	if a.inVain {
		clear(w.Header())
	}
	return !a.inVain
}

// answering is one attempt at a request of which there may be several.
type answering struct {
	call   string // the same for all of them; empty: the request tells
	inVain bool   // this agent led no more
}

type answeringKey struct{}

// answeringOf is the attempt that a context belongs to, or one of its own.
func answeringOf(ctx context.Context) *answering {
	if a, ok := ctx.Value(answeringKey{}).(*answering); ok {
		return a
	}
	return &answering{}
}

// heldBack writes an answer unless the attempt was in vain, which is known before the first byte.
type heldBack struct {
	http.ResponseWriter
	of *answering
}

func (h heldBack) WriteHeader(code int) {
	if !h.of.inVain {
		h.ResponseWriter.WriteHeader(code)
	}
}

func (h heldBack) Write(p []byte) (int, error) {
	if h.of.inVain {
		return len(p), nil
	}
	return h.ResponseWriter.Write(p)
}

// asker names who makes a request, for those who see it come from this agent.
func (s *Server) asker(r *http.Request) (string, error) {
	if cert, ok := transport.PeerFrom(r.Context()); ok {
		return cert.String(), nil
	}
	p := peerOf(r.Context())
	if err := s.access.check(p); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s (uid %d) on %s", p.name(), p.uid, s.cfg.Name), nil
}

// forwarded is one request on its way to whoever leads.
type forwarded struct {
	*Server
	method   protoreflect.MethodDescriptor
	body     []byte    // of a request that can be sent again; a stream cannot
	deadline time.Time // of the search for a leader; zero: none was missed yet
	inVain   error     // why this agent, which was thought to lead, has not answered it; nil: it was not asked
}

// RoundTrip sends the request to the leader, again while an election is under way.
func (f *forwarded) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	pause := firstForwardPause
	for err := f.inVain; ; err = nil {
		if err == nil {
			var resp *http.Response
			if resp, err = f.once(r); err == nil || errors.Is(err, errLeadsNow) {
				return resp, err
			}
		}
		if f.deadline.IsZero() {
			f.deadline = time.Now().Add(electionTimeout)
		}
		if ctx.Err() != nil || f.method.IsStreamingClient() || time.Now().Add(pause).After(f.deadline) {
			return nil, fmt.Errorf("%w: %w", errNoLeader, err)
		}
		select {
		case <-time.After(pause/2 + mathrand.N(pause)):
		case <-ctx.Done():
		}
		pause = min(2*pause, longestForwardPause)
	}
}

// errNoLeader says that nobody was found who leads.
var errNoLeader = errors.New("no server that leads answered: call again (pannier server members shows who is there)")

func (f *forwarded) once(r *http.Request) (*http.Response, error) {
	if f.cfg.Leader.IsLeader() {
		return nil, errLeadsNow
	}
	where, transport, err := f.cfg.Leader.LeaderURL(r.Context(), f.method.IsStreamingClient())
	if err != nil {
		return nil, err
	}
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host = where.Scheme, where.Host
	if !f.method.IsStreamingClient() {
		out.Body = io.NopCloser(bytes.NewReader(f.body))
		out.ContentLength = int64(len(f.body))
	}
	resp, err := transport.RoundTrip(out)
	if err != nil {
		f.cfg.Leader.Misled(where)
		return nil, err
	}
	if resp.StatusCode == http.StatusMisdirectedRequest {
		f.cfg.Leader.Misled(where)
		return nil, errors.Join(errMisdirected, resp.Body.Close())
	}
	return resp, nil
}

// methodOf is the call of the API that a path names; nil: none.
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

// frameHeader is what gRPC and connect's streams put before a message: a byte of flags and
// its length.
const frameHeader = 5

// wantsStale says whether a request is a query that takes a stale answer. One that
// cannot be read does not: whoever answers it says what is wrong.
func wantsStale(method protoreflect.MethodDescriptor, header http.Header, body []byte) bool {
	input, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil {
		return false
	}
	query, ok := input.New().Interface().(reader)
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
	if strings.HasSuffix(kind, "json") {
		err = protojson.Unmarshal(body, query)
	} else {
		err = proto.Unmarshal(body, query)
	}
	return err == nil && query.GetRead().GetStale()
}
