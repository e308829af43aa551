package peer

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/fencing/heartbeat"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/internal/errcode"
)

// ErrDenied means that the caller may not make the call. Its text explains why.
var ErrDenied = errcode.PermissionDenied.New("not allowed")

// longestText bounds the text of an error that is sent, in bytes: gRPC carries it in a header.
const longestText = 8 << 10

func codeOf(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	if c, ok := errcode.Of(err); ok {
		return codes.Code(c)
	}
	return status.FromContextError(err).Code()
}

// sent converts an error for sending: with its code, and a detail that marks it as the outcome of the call.
func sent(err error) error {
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message() // without gRPC's prefix
	}
	if len(text) > longestText {
		text = strings.ToValidUTF8(text[:longestText], "") + " ..."
	}
	answer := &peerv1.Answer{}
	if outcome, encodeErr := command.EncodeOutcome(nil, err); encodeErr == nil && len(outcome) < 2*longestText {
		answer.Outcome = outcome
	}
	s := status.New(codeOf(err), text)
	if detailed, detailErr := s.WithDetails(answer); detailErr == nil {
		s = detailed
	}
	return s.Err()
}

// deposed reports that a server could not answer because another one leads.
func deposed(err error) bool {
	return errors.Is(err, command.ErrNotLeader) || errors.Is(err, command.ErrUncertain) ||
		errors.Is(err, command.ErrClosed) ||
		errors.Is(err, heartbeat.ErrNotAnswered)
}

// uncertain reports that a command may have had its effect nevertheless.
func uncertain(err error) bool {
	return errors.Is(err, command.ErrUncertain) || errors.Is(err, command.ErrClosed)
}

// notLeader is the answer of a server that does not lead.
func notLeader(leader route.Member, uncertain bool, why error) error {
	s := status.New(codes.FailedPrecondition, why.Error())
	detailed, err := s.WithDetails(&peerv1.NotLeader{Leader: leader.Name, Address: leader.Addr, Uncertain: uncertain})
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}

// detail returns a detail of a status.
func detail[T any](err error) (found T, ok bool) {
	for _, d := range status.Convert(err).Details() {
		if found, ok = d.(T); ok {
			return found, true
		}
	}
	return found, false
}

// answered is an error that another agent returned. It has that agent's text, keeps its code for status.FromError, and
// wraps the ledger's sentinel error if it had one.
type answered struct {
	status *status.Status
	is     error
}

func (e *answered) Error() string { return e.status.Message() }

// GRPCStatus returns the code, for status.FromError.
func (e *answered) GRPCStatus() *status.Status { return e.status }

func (e *answered) Unwrap() error { return e.is }

// received converts an error that was received to what the caller sees.
func received(err error) error {
	if err == nil {
		return nil
	}
	e := &answered{status: status.Convert(err)}
	switch e.status.Code() {
	case codes.PermissionDenied:
		e.is = ErrDenied
	case codes.Canceled:
		e.is = context.Canceled
	case codes.DeadlineExceeded:
		e.is = context.DeadlineExceeded
	}
	if a, ok := detail[*peerv1.Answer](err); ok && len(a.GetOutcome()) > 0 {
		if _, was := command.DecodeOutcome(&command.Identify{}, a.GetOutcome()); was != nil &&
			!errors.Is(was, command.ErrMalformed) {
			e.is = errors.Join(was, e.is)
		}
	}
	return e
}

// refusals logs refused calls: ten at once and one per second, and how many were left out, so that nobody can fill the
// disk from outside.
type refusals struct {
	log   hclog.Logger
	allow *rate.Limiter

	mu    sync.Mutex
	quiet int // not logged since the last one that was
}

func newRefusals(log hclog.Logger) *refusals {
	return &refusals{log: log, allow: rate.NewLimiter(1, 10)}
}

func (r *refusals) refused(err error, method, by, from string) {
	r.mu.Lock()
	if !r.allow.Allow() {
		r.quiet++
		r.mu.Unlock()
		return
	}
	quiet := r.quiet
	r.quiet = 0
	r.mu.Unlock()
	r.log.Warn("a call of another agent was refused", "error", err, "call", method, "by", by, "from", from, "not_told",
		quiet)
}
