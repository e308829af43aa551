package peer

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/internal/errcode"
)

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
