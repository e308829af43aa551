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

	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/peer/pki"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/storage"
)

// closeGrace is how long the end of the server waits for calls under way. A query that
// waits for a change is cut off: whoever asked asks another server.
const closeGrace = time.Second

// Server answers other agents.
type Server struct {
	grpc *grpc.Server
	done chan struct{}
}

// Config is what a Server answers with.
type Config struct {
	// Leader does what servers are asked for; nil: this agent is no server.
	Leader *Leader
	// Node does what nodes are asked for.
	Node *Node
	// Terms of leaders that this agent has seen.
	Terms *Terms
	Log   hclog.Logger
}

// Serve answers on a listener of a port (rpc.Port.GRPC, with its ServerOptions) until
// Close, which closes the listener too.
func Serve(l net.Listener, cfg Config, options ...grpc.ServerOption) *Server {
	g := &guard{Config: cfg, refusals: newRefusals(cfg.Log)}
	options = append(options, grpc.UnaryInterceptor(g.unary), grpc.StreamInterceptor(g.stream), grpc.UnknownServiceHandler(unserved))
	s := &Server{grpc: grpc.NewServer(options...), done: make(chan struct{})}
	if cfg.Leader != nil {
		peerv1.RegisterServersServiceServer(s.grpc, serversService{leader: cfg.Leader, guard: g})
	}
	peerv1.RegisterNodeServiceServer(s.grpc, nodeService{node: cfg.Node})
	storage.Plugin(&driverCalls{calls: cfg.Node.Calls}).Register(s.grpc)
	go func() {
		defer close(s.done)
		if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			cfg.Log.Error("calls of other agents are not answered any more", "error", err)
		}
	}()
	return s
}

// Close lets calls under way end for a moment and cuts off the rest. It may be called
// again.
func (s *Server) Close() error {
	late := time.AfterFunc(closeGrace, s.grpc.Stop)
	defer late.Stop()
	s.grpc.GracefulStop()
	<-s.done
	return nil
}

// guard stands before every call: it sees who calls, and gives errors the form in which
// they travel.
type guard struct {
	Config
	refusals *refusals
}

func (g *guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := g.check(ctx, info.FullMethod, req); err != nil {
		return nil, g.refuse(ctx, info.FullMethod, err)
	}
	resp, err := handle(ctx, req)
	if err != nil {
		return nil, g.refuse(ctx, info.FullMethod, err)
	}
	return resp, nil
}

// check says whether the call may be made, and by this server.
func (g *guard) check(ctx context.Context, method string, req any) error {
	peer, ok := transport.PeerFrom(ctx)
	if !ok {
		return errNobody
	}
	who, err := mayCall(peer, method, req)
	switch {
	case err != nil:
		return err
	case who == byServers:
		return g.Terms.check(ctx)
	case who == amongServers:
		return nil
	case !g.Leader.Ledger.Leader():
		return errPassOn
	case peer.Role == pki.Node:
		return mayNode(ctx, g.Leader.Ledger, peer, req)
	default:
		return nil
	}
}

var (
	// errPassOn: this server does not lead.
	errPassOn = errors.New("this server does not lead the cluster")
	// errNobody: a certificate is missing.
	errNobody = errcode.Unauthenticated.New("the connection names nobody")
	// errUnserved: no agent of this version serves the call.
	errUnserved = errcode.Unimplemented.New("this agent does not serve the call")
)

// notAllowed are the errors of calls that were refused. What a driver answers is none of
// them, though it may have the same code.
var notAllowed = []error{ErrDenied, errNobody, errUnserved, command.ErrUnknownCommand, command.ErrUnknownQuery}

// refuse makes the error of a call the one that travels, and tells the operator of one
// that was not allowed.
func (g *guard) refuse(ctx context.Context, method string, err error) error {
	if slices.ContainsFunc(notAllowed, func(target error) bool { return errors.Is(err, target) }) {
		by, from := "nobody", "unknown"
		if peer, ok := transport.PeerFrom(ctx); ok {
			by = peer.String()
		}
		if p, ok := grpcpeer.FromContext(ctx); ok {
			from = p.Addr.String()
		}
		g.refusals.refused(err, method, by, from)
	}
	if g.Leader != nil && (errors.Is(err, errPassOn) || passedOn(err)) {
		return notLeader(g.Leader.leading(), !errors.Is(err, errPassOn) && uncertain(err), err)
	}
	return sent(err)
}

// stream refuses every stream, and every call that nobody serves: agents call one another
// once a call.
func (g *guard) stream(_ any, s grpc.ServerStream, info *grpc.StreamServerInfo, _ grpc.StreamHandler) error {
	return g.refuse(s.Context(), info.FullMethod, fmt.Errorf("%w %s", errUnserved, info.FullMethod))
}

// unserved is reached by no call: the guard refuses it before.
func unserved(any, grpc.ServerStream) error { return errors.ErrUnsupported }

// termKey is the metadata that says which term a leader's call is of.
const termKey = "leader-term"

// errOldTerm says that the caller does not lead any more.
var errOldTerm = errcode.FailedPrecondition.New("another server has led since: this one does not lead any more")

// Terms are the highest term of a leader that this node has seen. The zero value has
// seen none.
type Terms struct {
	mu      sync.Mutex
	highest uint64
}

// Seen takes a term in; the error is errOldTerm where a higher one was seen before.
func (t *Terms) Seen(term uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if term < t.highest {
		return fmt.Errorf("%w (term %d, and %d was seen)", errOldTerm, term, t.highest)
	}
	t.highest = term
	return nil
}

// check takes in the term of a call.
func (t *Terms) check(ctx context.Context) error {
	said := metadata.ValueFromIncomingContext(ctx, termKey)
	if len(said) != 1 {
		return status.Errorf(codes.InvalidArgument, "the call does not say which term of a leader it is of")
	}
	term, err := strconv.ParseUint(said[0], 10, 64)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "the term of the leader is no number")
	}
	return t.Seen(term)
}

func withTerm(ctx context.Context, term uint64) context.Context {
	return metadata.AppendToOutgoingContext(ctx, termKey, strconv.FormatUint(term, 10))
}
