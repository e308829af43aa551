package lease

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/test/lib/check"
)

// servers answers heartbeats as scripted by the test.
type servers struct {
	mu     sync.Mutex
	answer Answer
	err    error
}

func (s *servers) Heartbeat(_ context.Context, node string) (Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if node != "a" {
		return Answer{}, errors.New("another node")
	}
	return s.answer, s.err
}

func (s *servers) say(a Answer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.err = a, err
}

// keep runs a keeper and returns channels with its calls.
func keep(t *testing.T, s *servers, back func(Answer) error) (l *Lease, lost chan string, backs chan Answer) {
	t.Helper()
	l, lost, backs = newLease(t, &noted{}), make(chan string, 100), make(chan Answer, 100)
	k := &Keeper{
		Node: "a", Lease: l, Servers: s, Log: hclog.NewNullLogger(),
		Lost: func(_ context.Context, why string) { lost <- why },
		Back: func(_ context.Context, a Answer) error {
			backs <- a
			return back(a)
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { k.Run(ctx) })
	t.Cleanup(func() { cancel(); run.Wait() })
	return l, lost, backs
}

func next[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("not seen: %s", what)
	}
	return v
}

var well = func(Answer) error { return nil }

func TestServersAreAwayForAWhile(t *testing.T) {
	timeouts := claim.Liveness{HeartbeatTTL: claim.MinHeartbeatTTL, StopAfter: time.Second, Margin: 3 * time.Second}
	s := &servers{answer: Answer{Status: claim.NodeReady, Liveness: timeouts}}
	l, lost, backs := keep(t, s, well)
	next(t, "the comparison after the start", backs)
	s.say(Answer{}, errors.New("no server"))
	if why := next(t, "the loss", lost); why == "" || l.Valid() == nil {
		t.Errorf("lost since %q, valid: %v", why, l.Valid())
	}
	s.say(Answer{Status: claim.NodeDisconnected, Liveness: timeouts}, nil)
	next(t, "the comparison after that", backs)
}

// The error of a node that never had a lease has the servers' reason.
func TestServersThatRefuseANode(t *testing.T) {
	s := &servers{err: errors.New("known with another secret")}
	l, _, backs := keep(t, s, well)
	late := time.Now().Add(patience)
	for !strings.Contains(l.Valid().Error(), "known with another secret") {
		if time.Now().After(late) {
			t.Fatalf("the servers' refusal is not seen: %v", l.Valid())
		}
		time.Sleep(time.Millisecond)
	}
	s.say(Answer{
		Status:   claim.NodeReady,
		Liveness: claim.Liveness{HeartbeatTTL: claim.MinHeartbeatTTL, StopAfter: time.Hour, Margin: time.Hour},
	}, nil)
	next(t, "the comparison after the start", backs)
	must(t, l.Valid())
}

// A node of which others have released claims gets no lease before it has compared its workloads with the ledger.
func TestNoLeaseBeforeLostClaimsAreCompared(t *testing.T) {
	timeouts := claim.Liveness{HeartbeatTTL: claim.MinHeartbeatTTL, StopAfter: time.Hour, Margin: time.Hour}
	ready := func(lost, index uint64) Answer {
		return Answer{Status: claim.NodeReady, Liveness: timeouts, LostIndex: lost, Index: index}
	}
	s, compare := &servers{answer: ready(3, 5)}, make(chan struct{})
	l, _, backs := keep(t, s, func(Answer) error { <-compare; return nil })
	next(t, "the comparison after the start", backs)
	if l.Valid() == nil {
		t.Error("it has a lease while it compares")
	}
	close(compare)
	check.Eventually(t, "the lease after that", func() bool { return l.Valid() == nil })
	for len(backs) > 0 {
		<-backs
	}
	before := stop(l)
	s.say(ready(6, 6), nil)
	for next(t, "the comparison after claims were lost", backs).LostIndex != 6 {
	}
	check.Eventually(t, "the lease to be renewed", func() bool { return stop(l) > before })
}

// stop returns the time at which the lease ends.
func stop(l *Lease) boottime.Instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.times.Stop
}

// A node that gets the status down stops its workloads before it registers again.
func TestStopsBeforeItRegisters(t *testing.T) {
	timeouts := claim.Liveness{HeartbeatTTL: claim.MinHeartbeatTTL, StopAfter: time.Hour, Margin: time.Hour}
	for range 20 { // the loss and the answer are both there: the order must not be by chance
		s, compare := &servers{answer: Answer{Status: claim.NodeReady, Liveness: timeouts}}, make(chan struct{})
		ctx, cancel := context.WithCancel(context.Background())
		calls := make(chan string, 100)
		k := &Keeper{
			Node: "a", Lease: newLease(t, &noted{}), Servers: s, Log: hclog.NewNullLogger(),
			Lost: func(context.Context, string) { calls <- "lost" },
			Back: func(_ context.Context, a Answer) error {
				calls <- string(a.Status)
				<-compare
				return nil
			},
		}
		var run sync.WaitGroup
		run.Go(func() { k.Run(ctx) })
		next(t, "the comparison after the start", calls)
		s.say(Answer{Status: claim.NodeDown, Liveness: timeouts}, nil)
		check.Eventually(t, "the answer that it is down", func() bool { return len(k.answered) == 1 && k.Lease.Valid() != nil })
		close(compare)
		if first := next(t, "what is done about it", calls); first != "lost" {
			t.Errorf("%q came before the loss", first)
		}
		cancel()
		run.Wait()
	}
}

// A comparison that fails is repeated long before the next heartbeat is due: a new node is unknown to the ledger until
// its record is there.
func TestBackIsRetried(t *testing.T) {
	var mu sync.Mutex
	failures := 2
	_, _, backs := keep(t, &servers{answer: Answer{
		Status: claim.NodeReady,
		Liveness: claim.Liveness{
			HeartbeatTTL: time.Hour, StopAfter: time.Hour,
			Margin: time.Hour,
		},
	}}, func(Answer) error {
		mu.Lock()
		defer mu.Unlock()
		if failures--; failures >= 0 {
			return errors.New("the ledger is away")
		}
		return nil
	})
	for range 3 {
		next(t, "a comparison", backs)
	}
}

// A node whose claims the servers have released stops its workloads at once, and gets no lease until it is ready.
func TestNodeThatIsDown(t *testing.T) {
	timeouts := claim.Liveness{HeartbeatTTL: claim.MinHeartbeatTTL, StopAfter: time.Hour, Margin: time.Hour}
	s := &servers{answer: Answer{Status: claim.NodeReady, Liveness: timeouts}}
	l, lost, backs := keep(t, s, well)
	next(t, "the comparison after the start", backs)
	s.say(Answer{Status: claim.NodeDown, Liveness: timeouts}, nil)
	next(t, "the loss", lost)
	for next(t, "the comparison of a node that is down", backs).Status != claim.NodeDown {
	}
	if l.Valid() == nil {
		t.Error("a node that is down has a lease")
	}
	s.say(Answer{Status: claim.NodeReady, Liveness: timeouts}, nil)
	for next(t, "the comparison after that", backs).Status != claim.NodeReady {
	}
	must(t, l.Valid())
}
