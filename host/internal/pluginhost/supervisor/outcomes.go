package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/wire"
)

// outcomes counts how the unary calls of one generation end, by method, and compares them with those of the
// generation before it.
type outcomes struct {
	before map[string]tally // nil: unknown, taken as without failures
	beside *outcomes        // of the serving generation, if this one is a canary: compared with it instead
	// changed holds a token when the generation has become worse than the one before it, or is so no more.
	changed chan struct{}

	mu      sync.Mutex
	methods map[string]tally
	calls   int
	worse   bool
	flying  map[*flight]struct{} // the calls that are not answered yet
	judged  chan struct{}        // open: whether the generation is replaced has not been decided; nil: nothing is to be
}

// tally counts the calls of one method.
type tally struct {
	calls, failed int
	recent        uint32 // the newest calls, the last one in the lowest bit: 1 is a failed one
	last          string // why the last one failed
	at            time.Time
	answered      time.Time                 // when the last one was answered that did not fail
	took          [timedCalls]time.Duration // by a sample of the newer ones of these
	timed         int                       // how many these were
}

// flight is a call that is not answered yet.
type flight struct {
	method string
	began  time.Time
}

func newOutcomes() *outcomes {
	return &outcomes{changed: make(chan struct{}, 1), methods: map[string]tally{}, flying: map[*flight]struct{}{}}
}

// The rules for when a generation is worse than the one before it.
const (
	// failuresInRow is how many calls of a method must fail one after another, if none failed before.
	failuresInRow = 3
	// comparedCalls is how many calls of a method there must be before their rate of failures is compared; after as
	// many that succeed one after another, the method is well again.
	comparedCalls = 5
	// worseBy is by how much the rate of failures must be higher.
	worseBy = 0.20
	// hangsAfter, and hangsFactor times the median of the generation before, is how long failuresInRow calls of a method
	// hang that count as failures, unless one that began with them or later is answered.
	hangsAfter  = 2 * time.Second
	hangsFactor = 20
	// timedCalls is of how many calls of a method the median is taken: one in timedOneIn, since the newest ones alone are
	// those that the start of the next process has slowed.
	timedCalls = 32
	timedOneIn = 8
	// forgetAfter is how long the failures of a method count that is not called any more.
	forgetAfter = 10 * time.Minute
	// provenBy is how many calls a generation must have answered to be proven once the window is over.
	provenBy = 20
)

// IsFailure reports whether an error is one of the plugin's own, rather than an answer to what was asked of it:
// Internal, as of a panic, Unknown, DeadlineExceeded or Unimplemented.
func IsFailure(err error) bool {
	switch status.Code(err) {
	case codes.Internal, codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented:
		return true
	default:
		return false
	}
}

// isFailure is IsFailure, but Unimplemented is a failure only if the generation before had the method.
func isFailure(err error, b tally) bool {
	return IsFailure(err) && (status.Code(err) != codes.Unimplemented || b.calls > b.failed)
}

// baseline is what the calls of a method are compared with: those of the generation before, or of a canary, the newest
// ones of the generation that serves.
func (o *outcomes) baseline(method string) tally {
	if o.beside == nil {
		return o.before[method]
	}
	o.beside.mu.Lock()
	defer o.beside.mu.Unlock()
	b := o.beside.methods[method]
	b.failed, b.calls = b.newest()
	return b
}

// follows makes a canary the generation that serves, after one with those tallies.
func (o *outcomes) follows(before map[string]tally) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.before, o.beside = before, nil
	o.worse = o.worseMethod() != ""
	select {
	case o.changed <- struct{}{}: // the instance looks itself
	default:
	}
}

// begin counts a call as not answered until add or end.
func (o *outcomes) begin(method string) *flight {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := &flight{method, time.Now()}
	o.flying[f] = struct{}{}
	return f
}

// end forgets a call that is not to be counted.
func (o *outcomes) end(f *flight) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.flying, f)
}

// hadTime reports whether a call that its caller has given up had the time that it takes in the generation before. Else
// its failure says nothing: as a repeated one, it had only what another process has left.
func (o *outcomes) hadTime(ctx context.Context, f *flight) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	until := time.Now()
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(until) {
		until = deadline
	}
	return until.Sub(f.began) >= o.baseline(f.method).median()
}

// hanging says that calls of a method hang, which the generation before answered; empty: none do.
func (o *outcomes) hanging() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	hang := map[string]int{}
	for f := range o.flying {
		median := o.baseline(f.method).median()
		limit := max(hangsAfter, hangsFactor*median)
		if median == 0 || time.Since(f.began) < limit || o.methods[f.method].answered.After(f.began) {
			continue
		}
		if hang[f.method]++; hang[f.method] == failuresInRow {
			return fmt.Sprintf("%d calls of %s have not been answered for %v, and the generation before took %v (median)",
				failuresInRow, path.Base(f.method), limit, median.Round(time.Microsecond))
		}
	}
	return ""
}

// add counts a call. If it failed and is one of those for which the generation may be replaced, add returns a channel
// that is closed when that is decided; again is true if it failed in a canary, and may be repeated at once.
func (o *outcomes) add(f *flight, err error) (judged <-chan struct{}, again bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.flying, f)
	method := f.method
	t, b := o.methods[method], o.baseline(method)
	failed := isFailure(err, b)
	t.calls++
	t.recent <<= 1
	t.at = time.Now()
	o.calls++
	if !failed {
		t.answered = t.at
		if t.timed < timedCalls {
			t.took[t.timed] = t.at.Sub(f.began)
		} else if rand.IntN(timedOneIn) == 0 {
			t.took[rand.IntN(timedCalls)] = t.at.Sub(f.began)
		}
		t.timed++
	} else {
		t.failed++
		t.recent |= 1
		s := status.Convert(err)
		t.last = fmt.Sprintf("%s: %s", s.Code(), s.Message())
	}
	o.methods[method] = t
	// Only this method has changed: the others are looked at only to learn whether the last bad one is well again.
	if worse := t.worseThan(b) || o.worse && o.worseMethod() != ""; worse != o.worse {
		o.worse = worse
		if worse && o.judged == nil && o.beside == nil {
			o.judged = make(chan struct{})
		}
		select {
		case o.changed <- struct{}{}:
		default:
		}
	}
	if failed {
		return o.judged, o.beside != nil
	}
	return nil, false
}

// decided releases the calls that wait: the generation stays.
func (o *outcomes) decided() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.judged != nil {
		close(o.judged)
		o.judged = nil
	}
}

// degraded says in which method the generation is worse than the one before it, with the numbers; empty: in none.
func (o *outcomes) degraded() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.worseMethod()
}

func (o *outcomes) worseMethod() string {
	other := "before"
	if o.beside != nil {
		other = "that serves"
	}
	for _, method := range slices.Sorted(maps.Keys(o.methods)) {
		t, b := o.methods[method], o.baseline(method)
		if !t.worseThan(b) || time.Since(t.at) > forgetAfter {
			continue
		}
		failed, calls := t.newest()
		return fmt.Sprintf("%d of the last %d calls of %s failed (%d of %d in the generation %s), the last with %s",
			failed, calls, path.Base(method), b.failed, b.calls, other, t.last)
	}
	return ""
}

// newest returns how many of the newest calls failed, and how many these are.
func (t tally) newest() (failed, calls int) {
	const kept = 32 // the bits of recent
	return bits.OnesCount32(t.recent), min(t.calls, kept)
}

// median returns how long the calls took that did not fail; 0: there were too few.
func (t tally) median() time.Duration {
	if t.timed < comparedCalls {
		return 0
	}
	took := t.took[:min(t.timed, timedCalls)] // of a copy
	slices.Sort(took)
	return max(took[len(took)/2], 1)
}

func (t tally) worseThan(b tally) bool {
	inRow := bits.TrailingZeros32(^t.recent)
	if inRow >= failuresInRow && b.failed == 0 {
		return true
	}
	const lastOnes = 1<<comparedCalls - 1
	if t.calls < comparedCalls || t.recent&lastOnes == 0 {
		return false
	}
	failed, calls := t.newest()
	return float64(failed)/float64(calls)-float64(b.failed)/float64(max(b.calls, 1)) > worseBy
}

// tallies returns the counts of all methods, for the generation after this one to be compared with.
func (o *outcomes) tallies() map[string]tally {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.methods)
}

// answered returns how many calls were counted, and how many failed.
func (o *outcomes) answered() (calls, failed int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range o.methods {
		failed += t.failed
	}
	return o.calls, failed
}

// ErrReplaced means that a call failed or was given up and that another generation serves, because this one failed too
// many calls, took too long, or is a canary: the call may be repeated. It is wrapped around the error of the call.
var ErrReplaced = errors.New("another process of the plugin serves")

// errAbandoned is the error of a call that was given up.
var errAbandoned = status.Error(codes.Unavailable, "the call was given up: the plugin's process is replaced, and did "+
	"not finish it in time")

type replaced struct{ error }

func (r replaced) Unwrap() []error { return []error{r.error, ErrReplaced} }

// GRPCStatus keeps the code of the call.
func (r replaced) GRPCStatus() *status.Status { return status.Convert(r.error) }

// counted is the connection to a generation that callers use: their calls are counted.
type counted struct {
	*grpc.ClientConn
	gen *generation
}

// Invoke makes a unary call. A call for whose failure the generation may be replaced returns only when that is
// decided, or when ctx ends.
func (c counted) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.gen.abandoned, cancel)() //nolint:contextcheck // also ends with the process
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	f := c.gen.outcomes.begin(method)
	var trailer metadata.MD
	err := c.ClientConn.Invoke(inner, method, args, reply, append(opts, grpc.Trailer(&trailer))...)
	c.gen.i.sup.called(c.gen, method, err, time.Since(f.began))
	// The plugin's timer may fire before that of ctx.
	deadline, bound := ctx.Deadline()
	switch given := ctx.Err() != nil || bound && !time.Now().Before(deadline); {
	case status.Code(err) == codes.Canceled && !given && c.gen.abandoned.Err() != nil:
		c.gen.outcomes.end(f)
		return replaced{errAbandoned}
	case given && !c.gen.outcomes.hadTime(ctx, f):
		c.gen.outcomes.end(f)
		return err
	}
	own := err
	if len(trailer.Get(wire.RelayedKey)) > 0 {
		own = nil // the plugin has done its part: it passed on a driver's error
	}
	judged, again := c.gen.outcomes.add(f, own)
	switch {
	case again && ctx.Err() == nil:
		return replaced{err}
	case judged == nil:
		return err
	}
	select {
	case <-judged:
		return err
	case <-c.gen.Retired():
		return replaced{err}
	case <-ctx.Done():
		return err
	}
}

// judge decides what becomes of a generation whose outcomes have changed. It returns an error if callers must leave
// it.
func (g *generation) judge() error {
	why := g.outcomes.degraded()
	if hanging := g.outcomes.hanging(); hanging != "" {
		why, g.hangs = hanging, true
	}
	switch {
	case why != "" && (g.isCanary || g.i.procs.MayGoBack(g.Process, g.Run.SHA256)):
		return errors.New(why)
	case g.isCanary:
		return nil
	}
	g.outcomes.decided()
	was := g.degraded
	g.degraded = why != ""
	switch {
	case g.degraded && !was:
		g.i.set(EventDegraded, why+"; see: pannier plugin logs "+g.i.name, func(*Status) {})
	case was && !g.degraded:
		g.i.set(EventHealthy, "its calls succeed again", func(*Status) {})
	}
	return nil
}
