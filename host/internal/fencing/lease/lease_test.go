package lease

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/fencing/fence"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

var (
	redis = claim.WorkloadRef{Namespace: "default", ID: "redis"}
	data  = fence.Mount{Path: "/csi/d/target", Workload: redis}
	// long timeouts do not expire in a test.
	long = claim.Liveness{HeartbeatTTL: time.Second, StopAfter: time.Hour, Margin: time.Hour}
	// short ones do.
	short = claim.Liveness{HeartbeatTTL: claim.MinHeartbeatTTL, StopAfter: claim.MinHeartbeatTTL, Margin: 3 * time.Second}
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// noted is a fence that records its calls, and returns errors as scripted by the test.
type noted struct {
	mu    sync.Mutex
	state fence.State
	fail  error
	then  func() // called once, after a change
}

func (n *noted) State() fence.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state
}

func (n *noted) Update(_ context.Context, change func(fence.Change)) error {
	n.mu.Lock()
	err, then := n.fail, n.then
	if err == nil {
		n.state = n.state.With(change)
	}
	n.then = nil
	n.mu.Unlock()
	if then != nil {
		then()
	}
	return err
}

func (n *noted) failing(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fail = err
}

func newLease(t *testing.T, f *noted) *Lease {
	t.Helper()
	l := New(f, hclog.NewNullLogger())
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

func isLost(l *Lease) bool {
	select {
	case <-l.Lost():
		return true
	default:
		return false
	}
}

func awaitLost(t *testing.T, lost <-chan struct{}) {
	t.Helper()
	select {
	case <-lost:
	case <-time.After(patience):
		t.Fatal("the lease is not over")
	}
}

func TestStandaloneHostHasAlwaysALease(t *testing.T) {
	var l *Lease
	must(t, errors.Join(l.Valid(), l.Protect(t.Context(), data), l.Release(t.Context(), data),
		l.ProtectProcess(t.Context(), fence.Process{}), l.ReleaseProcess(t.Context(), fence.Process{})))
	if l.Lost() != nil || l.Epoch() != 0 || l.Why() != "" {
		t.Error("it can be lost")
	}
}

func TestNothingIsPublishedWithoutALease(t *testing.T) {
	f := &noted{}
	l := newLease(t, f)
	if err := l.Protect(t.Context(), data); !errors.Is(err, ErrNoLease) {
		t.Errorf("before the first answer: %v", err)
	}
	if isLost(l) {
		t.Error("what never was is lost")
	}
	must(t, l.Renew(t.Context(), boottime.Now(), long))
	must(t, l.Protect(t.Context(), data))
	if s := f.State(); !slices.Equal(s.Mounts, []fence.Mount{data}) || s.Times.Deadline <= s.Times.Stop {
		t.Errorf("the fence knows %+v", s)
	}
	f.failing(errors.New("gone"))
	if err := l.Protect(t.Context(), data); err == nil {
		t.Error("published without a fence")
	}
	f.failing(nil)
	must(t, l.Release(t.Context(), data))
	if s := f.State(); len(s.Mounts) != 0 {
		t.Errorf("the fence still guards %+v", s)
	}
}

// A process must not begin under a lease that ended while the fence was told of it.
func TestALeaseEndsWhileTheFenceIsTold(t *testing.T) {
	f := &noted{}
	l := newLease(t, f)
	must(t, l.Renew(t.Context(), boottime.Now(), long))
	f.then = func() { must(t, l.Expire(t.Context(), "an operator said so")) }
	if err := l.ProtectProcess(t.Context(), fence.Process{PID: 7, Workload: redis}); !errors.Is(err, ErrNoLease) {
		t.Errorf("it may begin: %v", err)
	}
}

func TestALeaseEndsByItself(t *testing.T) {
	l := newLease(t, &noted{})
	must(t, l.Renew(t.Context(), boottime.Now(), short))
	epoch, lost := l.Epoch(), l.Lost()
	awaitLost(t, lost)
	if err := l.Valid(); !errors.Is(err, ErrNoLease) || l.Why() == "" {
		t.Errorf("valid: %v, why: %q", err, l.Why())
	}
	must(t, l.Renew(t.Context(), boottime.Now(), long))
	if l.Valid() != nil || isLost(l) || l.Epoch() == epoch {
		t.Errorf("after an answer: %v, lost %t, epoch %d", l.Valid(), isLost(l), l.Epoch())
	}
	epoch = l.Epoch()
	must(t, l.Renew(t.Context(), boottime.Now(), long))
	if l.Epoch() != epoch {
		t.Error("a lease that was renewed in time is another one")
	}
}

func TestLateAnswer(t *testing.T) {
	l := newLease(t, &noted{})
	must(t, l.Renew(t.Context(), boottime.Now().Add(-time.Minute), short))
	if err := l.Valid(); !errors.Is(err, ErrNoLease) {
		t.Errorf("valid: %v", err)
	}
}

func TestOnlyANewerHeartbeatCounts(t *testing.T) {
	f := &noted{}
	l := newLease(t, f)
	now := boottime.Now()
	must(t, l.Renew(t.Context(), now, long))
	before := f.State()
	must(t, l.Renew(t.Context(), now.Add(-time.Second),
		claim.Liveness{HeartbeatTTL: time.Second, StopAfter: 20 * time.Hour, Margin: 9 * time.Hour}))
	if after := f.State(); after.Times != before.Times {
		t.Errorf("an older heartbeat changed %v to %v", before.Times, after.Times)
	}
	shorter := claim.Liveness{HeartbeatTTL: time.Second, StopAfter: time.Minute, Margin: time.Minute}
	must(t, l.Renew(t.Context(), now.Add(1), shorter)) // the servers' timeouts were changed
	if after := f.State(); after.Times != NodeTimes(now.Add(1), shorter) {
		t.Errorf("the lease runs to %v", after.Times)
	}
	if err := l.Renew(t.Context(), now.Add(2), claim.Liveness{}); !errors.Is(err, claim.ErrUnsafe) {
		t.Errorf("unsafe timeouts: %v", err)
	}
}

func TestUnreachableFencePreventsRenewal(t *testing.T) {
	f := &noted{}
	l := newLease(t, f)
	must(t, l.Renew(t.Context(), boottime.Now(), short))
	f.failing(errors.New("gone"))
	if err := l.Renew(t.Context(), boottime.Now(), long); err == nil {
		t.Error("renewed")
	}
	awaitLost(t, l.Lost())
	f.failing(fence.ErrNotKept) // its disk is full
	must(t, l.Renew(t.Context(), boottime.Now(), long))
	must(t, l.Valid())
}

func TestTheNextProcessTakesTheLeaseOver(t *testing.T) {
	now := boottime.Now()
	l := newLease(t, &noted{state: fence.State{Times: NodeTimes(now, long)}})
	if l.Valid() != nil || isLost(l) {
		t.Errorf("one that still runs: %v", l.Valid())
	}
	if l = newLease(t, &noted{state: fence.State{Times: NodeTimes(now.Add(-24*time.Hour), long)}}); l.Valid() == nil ||
		!isLost(l) {
		t.Error("one that is over is not lost")
	}
}

func TestExpire(t *testing.T) {
	f := &noted{}
	l := newLease(t, f)
	must(t, l.Renew(t.Context(), boottime.Now(), long))
	must(t, l.Expire(t.Context(), "an operator said so"))
	if !isLost(l) || l.Valid() == nil || l.Why() != "an operator said so" || f.State().Times.Deadline > boottime.Now() {
		t.Errorf("valid: %v, the fence knows %+v", l.Valid(), f.State())
	}
}
