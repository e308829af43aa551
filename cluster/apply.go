package cluster

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
	"go.opentelemetry.io/otel/trace"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// Identity returns the cluster's unique id, which is set once.
func (n *Node) Identity(ctx context.Context) (claim.Cluster, error) {
	var standing claim.Cluster
	var found bool
	err := n.Read(ctx, func(tx *state.ReadTx) (err error) {
		standing, found, err = tx.Cluster()
		return err
	})
	if err != nil || found {
		return standing, err
	}
	return apply[claim.Cluster](ctx, n, &command.Identify{Cluster: claim.Cluster{ID: rand.Text()}})
}

// apply sends a command to the leader, this server or another. A command that may be sent several times has a key,
// so that it is applied once. What this server decides as the leader is not sent to another one: its successor may have
// promised the opposite.
func (n *Node) apply(ctx context.Context, c command.Command) (any, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if term, decides := ctx.Value(termKey{}).(uint64); decides {
		command.SetTerm(c, term)
		return n.execute(ctx, c)
	}
	if n.remote == nil {
		if err := n.WaitReady(ctx); err != nil {
			return nil, err
		}
		return n.execute(ctx, c)
	}
	if err := setKey(ctx, c); err != nil {
		return nil, err
	}
	if n.Leader() {
		result, err := n.execute(ctx, c)
		moved := errors.Is(err, command.ErrNotLeader) || errors.Is(err, command.ErrUncertain)
		if !moved || ctx.Err() != nil {
			return result, err
		}
	}
	return n.remote.Apply(ctx, c)
}

// ApplyFor applies another agent's command, with this server's time, if this server leads. After ErrNotLeader,
// ErrUncertain and ErrClosed the command may be repeated.
func (n *Node) ApplyFor(ctx context.Context, c command.Command) (any, error) {
	if !n.Leader() {
		return nil, command.ErrNotLeader
	}
	return n.execute(ctx, c)
}

// execute puts a command into this server's log and waits for its result. It shares writes of the log and transactions
// with those of other callers.
func (n *Node) execute(ctx context.Context, c command.Command) (any, error) {
	if err := needSpace(n.dir, spaceFor(c)); err != nil {
		return nil, err
	}
	command.SetAt(c, n.now().UTC())
	entry, err := command.Encode(c)
	if err != nil {
		return nil, err
	}
	ctx, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("github.com/pannier/pannier/cluster").
		Start(ctx, "raft apply")
	defer span.End()
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, command.ErrClosed
	}
	n.inFlight.Add(1)
	n.mu.Unlock()
	done := make(chan state.Outcome, 1)
	go func() {
		defer n.inFlight.Done()
		done <- outcomeOf(n.raft.Apply(entry, 0))
	}()
	select {
	case outcome := <-done:
		return outcome.Result, outcome.Err
	case <-ctx.Done(): // raft cannot cancel an entry
		return nil, fmt.Errorf("%w: %w", command.ErrUncertain, context.Cause(ctx))
	}
}

// outcomeOf waits until raft has finished an entry.
func outcomeOf(future raft.ApplyFuture) state.Outcome {
	if err := future.Error(); err != nil {
		return state.Outcome{Err: raftError(err)}
	}
	outcome, ok := future.Response().(state.Outcome)
	if !ok {
		outcome.Err = fmt.Errorf("raft answered %T", future.Response())
	}
	return outcome
}

func raftError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return command.ErrNotLeader
	case errors.Is(err, raft.ErrRaftShutdown):
		return command.ErrClosed
	default:
		// Leadership lost, or the log could not be written: raft may have stored it.
		return fmt.Errorf("%w: %w", command.ErrUncertain, err)
	}
}

// Remote sends commands and queries to the leader: it finds the leader, and repeats the call over elections until
// ctx ends. It encodes them only if they leave this process. Its errors are those of the command or query,
// ErrNotLeader, and ErrUncertain if the command may have been applied.
type Remote interface {
	Apply(ctx context.Context, c command.Command) (result any, err error)
	Query(ctx context.Context, q command.Query) (answer any, index uint64, err error)
}

// Client accesses the ledger from an agent without a copy of it.
type Client struct {
	Commands
	Queries
}

// NewClient makes a client of the servers that remote reaches.
func NewClient(remote Remote) *Client {
	via := forwarder{remote}
	return &Client{Commands{to: via}, Queries{to: via}}
}

// forwarder sends all commands and queries to the leader.
type forwarder struct{ remote Remote }

func (f forwarder) apply(ctx context.Context, c command.Command) (any, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if err := setKey(ctx, c); err != nil {
		return nil, err
	}
	return f.remote.Apply(ctx, c)
}

func (f forwarder) ask(ctx context.Context, q command.Query) (any, uint64, error) {
	return f.remote.Query(ctx, q)
}

// WithCall names the call that the commands applied with the context belong to. If the call is repeated under the
// same name, commands that were applied before are answered with the same result and change nothing. The name is
// an id that nobody can guess, and ctx is for one attempt.
func WithCall(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callKey{}, &call{name: name, made: map[[sha256.Size]byte]uint64{}})
}

type callKey struct{}

// call is one attempt at a call.
type call struct {
	name string
	mu   sync.Mutex
	made map[[sha256.Size]byte]uint64 // count by fingerprint
}

// setKey sets a command's key. Within a call it is derived from the call's name, the command, and how often the
// call has made this command: if a repeated call makes other commands, they are new ones. Outside of a call the
// key is random. The error is that of a command that cannot be encoded.
func setKey(ctx context.Context, c command.Command) error {
	of, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		command.SetKey(c, rand.Text())
		return nil
	}
	command.SetKey(c, "")
	sum, err := command.Fingerprint(c)
	if err != nil {
		return err
	}
	what := [sha256.Size]byte(sum)
	of.mu.Lock()
	times := of.made[what]
	of.made[what]++
	of.mu.Unlock()
	key := sha256.Sum256(append(binary.BigEndian.AppendUint64(what[:], times), of.name...))
	command.SetKey(c, base32.StdEncoding.EncodeToString(key[:])[:26])
	return nil
}
