package peer

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/host/internal/peer/onbehalf"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
	"github.com/pannier/pannier/host/internal/system/tracing"
)

// Bounds of one call that carries commands.
const (
	// maxEntries is as many as raft writes at once.
	maxEntries = 256
	// maxBatch is the size in bytes at which a batch is complete: with one more command it is still below
	// transport.MaxRequest.
	maxBatch = 512 << 10
	// callsAtOnce bounds the calls to one server: one is sent while the other is applied.
	callsAtOnce = 2
)

// batcher sends commands to servers. Commands that arrive while calls are running wait for the next call and go
// together, because a call costs more than a command.
type batcher struct {
	node     string
	identify func(context.Context) context.Context // as Servers.identify

	mu sync.Mutex
	to map[*grpc.ClientConn]*queue // the servers that calls are running to
}

// queue is the commands that wait for one server.
type queue struct {
	calls   int
	waiting []*pendingCommand
}

// pendingCommand is one command that is being sent.
type pendingCommand struct {
	ctx   context.Context // its caller's
	entry []byte
	by    *onbehalf.Caller
	done  chan struct{} // closed when the outcome and the error are set

	outcome []byte
	err     error
}

func newBatcher(node string, identify func(context.Context) context.Context) *batcher {
	return &batcher{node: node, identify: identify, to: map[*grpc.ClientConn]*queue{}}
}

// apply sends one command to a server.
func (b *batcher) apply(ctx context.Context, to service, entry []byte) (outcome []byte, err error) {
	ctx, span := tracing.Span(ctx, "forward to the leader", tracing.Node.String(b.node))
	defer func() { tracing.End(span, err) }()
	c := &pendingCommand{ctx: ctx, entry: entry, by: onbehalf.From(ctx), done: make(chan struct{})}
	b.mu.Lock()
	q := b.to[to.conn]
	if q == nil {
		q = &queue{}
		b.to[to.conn] = q
	}
	q.waiting = append(q.waiting, c)
	if q.calls < callsAtOnce {
		q.calls++
		go b.run(to, q) //nolint:contextcheck // it carries commands of other callers too
	}
	b.mu.Unlock()
	select {
	case <-c.done:
		return c.outcome, c.err
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// run calls a server until no command waits.
func (b *batcher) run(to service, q *queue) {
	for {
		batch := b.next(to, q)
		if len(batch) == 0 {
			return
		}
		b.call(to, batch)
	}
}

// next takes the waiting commands, without those whose callers have gone. If there are none, run ends.
func (b *batcher) next(to service, q *queue) (batch []*pendingCommand) {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := 0
	for len(q.waiting) > 0 && len(batch) < maxEntries && size < maxBatch {
		c := q.waiting[0]
		q.waiting = q.waiting[1:]
		if c.ctx.Err() == nil {
			batch, size = append(batch, c), size+len(c.entry)
		}
	}
	if len(batch) == 0 {
		q.calls--
	}
	if q.calls == 0 {
		delete(b.to, to.conn)
	}
	return batch
}

// call makes one call and sets the outcome of each command.
func (b *batcher) call(to service, batch []*pendingCommand) {
	ctx, cancel := context.WithTimeout(traced(batch), applyTimeout)
	defer cancel()
	req := &peerv1.ApplyRequest{Node: b.node}
	for _, c := range batch {
		token, grant := c.by.Credentials()
		req.Entries = append(req.Entries, c.entry)
		req.Callers = append(req.Callers, &peerv1.Caller{Token: token, Grant: grant})
	}
	resp, err := to.Apply(b.identify(ctx), req)
	if err == nil && len(resp.GetApplied()) != len(batch) {
		err = status.Errorf(codes.Internal, "the server returned the outcomes of %d commands, not of %d",
			len(resp.GetApplied()), len(batch))
	}
	for i, c := range batch {
		if c.err = err; err == nil {
			c.outcome, c.err = outcomeOf(resp.GetApplied()[i])
			c.by.Granted(resp.GetApplied()[i].GetGrant())
		}
		close(c.done)
	}
}

// traced returns the context of a call that carries a batch: it is in the trace of the first command that has one.
func traced(batch []*pendingCommand) context.Context {
	for _, c := range batch {
		if trace.SpanContextFromContext(c.ctx).IsSampled() {
			return tracing.Within(context.Background(), c.ctx)
		}
	}
	return context.Background()
}

// outcomeOf returns the encoded outcome of one command of a call, or the error that it would have had in a call of its
// own.
func outcomeOf(a *peerv1.Applied) (outcome []byte, err error) {
	if len(a.GetError()) == 0 {
		return a.GetOutcome(), nil
	}
	s := status.New(codes.OK, "").Proto()
	if err := proto.Unmarshal(a.GetError(), s); err != nil {
		return nil, status.Errorf(codes.Internal, "the server's error cannot be read: %v", err)
	}
	return nil, status.ErrorProto(s)
}
