package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/pannier/pannier/cluster/command"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/internal/errcode"
	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
)

// closeGrace is how long Close waits for running calls. A query that waits for a change is cut off; its caller asks
// another server.
const closeGrace = time.Second

// Server answers calls of other agents.
type Server struct {
	grpc *grpc.Server
	done chan struct{}
}

// Config configures a Server.
type Config struct {
	// Leader answers calls to the leader; nil: this agent is no server.
	Leader *Leader
	// Node answers calls to this node.
	Node *Node
	// Terms are the leaders' terms that this agent has seen.
	Terms *Terms
	// Audit writes to the audit log what was done, or refused, for another agent.
	Audit func(ctx context.Context, c Change)
	Log   hclog.Logger
}

// Serve answers calls on a listener of a port (transport.Port.GRPC, with its ServerOptions) until Close, which closes
// the listener too.
func Serve(l net.Listener, cfg Config, options ...grpc.ServerOption) *Server {
	g := &guard{Config: cfg, refusals: newRefusals(cfg.Log)}
	options = append(options, grpc.InTapHandle(g.begin), grpc.UnaryInterceptor(g.unary), grpc.StreamInterceptor(g.stream),
		grpc.UnknownServiceHandler(unserved))
	s := &Server{grpc: grpc.NewServer(options...), done: make(chan struct{})}
	if cfg.Leader != nil {
		peerv1.RegisterServersServiceServer(s.grpc, serversService{leader: cfg.Leader, guard: g})
	}
	peerv1.RegisterNodeServiceServer(s.grpc, nodeService{node: cfg.Node})
	driverCalls{s.grpc, cfg.Node.Calls}.RegisterService(&storagev1.StorageService_ServiceDesc, nil)
	go func() {
		defer close(s.done)
		if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			cfg.Log.Error("calls of other agents are not answered any more", "error", err)
		}
	}()
	return s
}

// Close waits up to closeGrace for running calls and cuts off the rest. It may be called again.
func (s *Server) Close() error {
	late := time.AfterFunc(closeGrace, s.grpc.Stop)
	defer late.Stop()
	s.grpc.GracefulStop()
	<-s.done
	return nil
}

// guard checks the caller of every call, and converts errors for sending.
type guard struct {
	Config
	refusals *refusals
}

// arrivalKey is the context key of the func that ends the time in which the request must arrive.
type arrivalKey struct{}

// begin checks the caller's certificate before gRPC reads the request, which must arrive in time.
func (g *guard) begin(ctx context.Context, info *tap.Info) (context.Context, error) {
	peer, ok := transport.PeerFrom(ctx)
	err := errNoCertificate
	if ok {
		_, err = roleMayCall(peer, info.FullMethodName)
	}
	// Whether a call that is in no list exists is known to gRPC, which looks next.
	if err != nil && methods[info.FullMethodName] != 0 {
		g.audit(ctx, &Change{Method: info.FullMethodName}, err)
		return ctx, g.refuse(ctx, info.FullMethodName, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(transport.BodyTimeout, cancel)
	return context.WithValue(ctx, arrivalKey{}, late.Stop), nil
}

func (g *guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if arrived, ok := ctx.Value(arrivalKey{}).(func() bool); ok {
		arrived()
	}
	var resp any
	c := &Change{Method: info.FullMethod}
	err := g.check(ctx, info.FullMethod, req)
	if err == nil {
		c.Object = objectOf(req)
		resp, err = handle(context.WithValue(ctx, changeKey{}, c), req)
	}
	g.audit(ctx, c, err)
	if err != nil {
		return nil, g.refuse(ctx, info.FullMethod, err)
	}
	return resp, nil
}

// check reports whether the caller may make the call, and whether this server may answer it.
func (g *guard) check(ctx context.Context, method string, req any) error {
	peer, ok := transport.PeerFrom(ctx)
	if !ok {
		return errNoCertificate
	}
	who, err := mayCall(peer, method, req)
	switch {
	case err != nil:
		return err
	case who == byServers:
		if err := g.Node.expected(ctx); err != nil {
			return err
		}
		return g.Terms.check(ctx, method)
	case who == amongServers:
		n, err := look(ctx, g.Leader, peer)
		if err == nil {
			err = n.same()
		}
		return err
	}
	if !g.Leader.Ledger.Leader() {
		return errNotLeading
	}
	return mayAgent(ctx, g.Leader, peer, req)
}

var (
	// errNotLeading: this server does not lead.
	errNotLeading = errors.New("this server does not lead the cluster")
	// errNoCertificate: there is no certificate.
	errNoCertificate = errcode.Unauthenticated.New("the connection has no certificate")
	// errUnserved: this version of the agent does not serve the call.
	errUnserved = errcode.Unimplemented.New("this agent does not serve the call")
)

// notAllowed are the errors of refused calls. Errors of drivers are not among them, though they may have the same
// code.
var notAllowed = []error{ErrDenied, errNoCertificate, errUnserved, command.ErrUnknownCommand, command.ErrUnknownQuery}

func refused(err error) bool {
	return slices.ContainsFunc(notAllowed, func(target error) bool { return errors.Is(err, target) })
}

// refuse converts the error of a call for sending, and logs calls that were not allowed.
func (g *guard) refuse(ctx context.Context, method string, err error) error {
	if refused(err) {
		by, from := "nobody", "unknown"
		if peer, ok := transport.PeerFrom(ctx); ok {
			by = peer.String()
		}
		if p, ok := grpcpeer.FromContext(ctx); ok {
			from = p.Addr.String()
		}
		g.refusals.refused(err, method, by, from)
	}
	if g.Leader != nil && (errors.Is(err, errNotLeading) || deposed(err)) {
		return notLeader(g.Leader.leading(), !errors.Is(err, errNotLeading) && uncertain(err), err)
	}
	return sent(err)
}

// stream refuses all streams and unknown calls: agents only make unary calls.
func (g *guard) stream(_ any, s grpc.ServerStream, info *grpc.StreamServerInfo, _ grpc.StreamHandler) error {
	return g.refuse(s.Context(), info.FullMethod, fmt.Errorf("%w %s", errUnserved, info.FullMethod))
}

// unserved is never reached: the guard refuses such calls first.
func unserved(any, grpc.ServerStream) error { return errors.ErrUnsupported }

// termKey is the metadata that carries the leader's term.
const termKey = "leader-term"

// errOldTerm means that the caller does not lead any more.
var errOldTerm = errcode.FailedPrecondition.New("another server has become the leader since")

// errNoTerm means that this agent cannot tell yet who leads.
var errNoTerm = errcode.Unavailable.New("no server has answered this agent since its start, so it cannot tell who leads")

// Terms remembers the highest leader's term that this agent has seen since its start. The zero value is ready.
type Terms struct {
	mu       sync.Mutex
	highest  uint64
	answered bool // by a leader, which has made sure that it leads
}

// Answered records the term of a leader that has answered a heartbeat. It returns errOldTerm if a higher one was seen
// before.
func (t *Terms) Answered(term uint64) error {
	if err := t.Seen(term); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answered = true
	return nil
}

// Seen records a term. It returns errOldTerm if a higher one was seen before.
func (t *Terms) Seen(term uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if term < t.highest {
		return fmt.Errorf("%w (term %d, and %d was seen)", errOldTerm, term, t.highest)
	}
	t.highest = term
	return nil
}

// check records the term of a call. After a restart a caller may be a leader that this agent knew to be replaced, so
// calls to the node wait for the answer to its first heartbeat. A key is taken from any leader: the agent may need it
// to start.
func (t *Terms) check(ctx context.Context, method string) error {
	values := metadata.ValueFromIncomingContext(ctx, termKey)
	if len(values) != 1 {
		return status.Errorf(codes.InvalidArgument, "the call does not carry the leader's term")
	}
	term, err := strconv.ParseUint(values[0], 10, 64)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "the leader's term is not a number")
	}
	t.mu.Lock()
	answered := t.answered
	t.mu.Unlock()
	if !answered && method != peerv1.ServersService_OfferSecretsKey_FullMethodName {
		return errNoTerm
	}
	return t.Seen(term)
}

func withTerm(ctx context.Context, term uint64) context.Context {
	return metadata.AppendToOutgoingContext(ctx, termKey, strconv.FormatUint(term, 10))
}
