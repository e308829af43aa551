package lease

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
)

func TestUnsafeTimeouts(t *testing.T) {
	s := time.Second
	for name, row := range map[string]struct {
		timeouts claim.Liveness
		safe     bool
	}{
		"default": {claim.DefaultLiveness, true},
		"short":   {claim.Liveness{HeartbeatTTL: s, StopAfter: 3 * s, Margin: 3 * s}, true},
		"the least margin": {claim.Liveness{
			HeartbeatTTL: s, StopAfter: time.Minute,
			Margin: claim.MinMargin(time.Minute),
		}, true},
		"no margin": {claim.Liveness{HeartbeatTTL: s, StopAfter: 3 * s}, false},
		"too little margin": {claim.Liveness{
			HeartbeatTTL: s, StopAfter: time.Minute,
			Margin: claim.MinMargin(time.Minute) - 200*time.Millisecond,
		}, false},
		// chronyd slews by up to 10 % (maxslewrate), by setting the kernel's tick.
		"a margin that one slewed clock eats up": {claim.Liveness{
			HeartbeatTTL: s, StopAfter: 10 * time.Minute,
			Margin: time.Minute,
		}, false},
		"a margin that drift eats up": {claim.Liveness{HeartbeatTTL: s, StopAfter: time.Hour, Margin: 30 * s}, false},
		"stop before it is missed":    {claim.Liveness{HeartbeatTTL: 61 * s, StopAfter: time.Minute, Margin: 30 * s}, false},
		"heartbeats all the time": {claim.Liveness{
			HeartbeatTTL: time.Millisecond, StopAfter: time.Minute,
			Margin: 30 * s,
		}, false},
		"nothing":                     {claim.Liveness{}, false},
		"negative":                    {claim.Liveness{HeartbeatTTL: s, StopAfter: time.Minute, Margin: -time.Hour}, false},
		"longer than anyone can wait": {claim.Liveness{HeartbeatTTL: s, StopAfter: 1 << 62, Margin: 1 << 62}, false},
	} {
		err := claim.CheckLiveness(row.timeouts)
		if (err == nil) != row.safe || err != nil && !errors.Is(err, claim.ErrUnsafe) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSlewedClocks: with the clocks of node and leader as far apart as the kernel's tick and frequency let any time
// daemon bring them (adjtimex(2): 10 % and 500 ppm), the fence still acts in time, with every margin that is admitted.
func TestSlewedClocks(t *testing.T) {
	const kernel = 0.1 + 500e-6
	for _, stopAfter := range []time.Duration{time.Second, time.Minute, time.Hour} {
		l := claim.Liveness{HeartbeatTTL: claim.MinHeartbeatTTL, StopAfter: stopAfter, Margin: claim.MinMargin(stopAfter)}
		fenced := float64(NodeTimes(0, l).Deadline) / (1 - kernel)
		released := float64(claim.ReleaseAfter(l)) / (1 + kernel)
		if left := time.Duration(released - fenced); left < claim.MinStopTime {
			t.Errorf("%v: the fence has %v to stop what writes", l, left)
		}
	}
	if left := claim.StopTime(claim.DefaultLiveness); left < 3*time.Second {
		t.Errorf("the default leaves %v", left)
	}
}

// When the leader releases claims, the fence has acted at least claim.MinStopTime of true time before, however the
// clocks drift within claim.MaxDrift and however long heartbeats and answers take.
func TestTheFenceActsBeforeTheLeaderReleases(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stopAfter := time.Duration(rapid.Int64Range(int64(time.Second), int64(time.Hour)).Draw(t, "stop_after"))
		timeouts := claim.Liveness{
			HeartbeatTTL: claim.MinHeartbeatTTL, StopAfter: stopAfter,
			Margin: claim.MinMargin(stopAfter) + time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "more margin")),
		}
		if err := claim.CheckLiveness(timeouts); err != nil {
			t.Fatal(err)
		}
		node := 1 + rapid.Float64Range(-claim.MaxDrift, claim.MaxDrift).Draw(t, "node's clock")
		leader := 1 + rapid.Float64Range(-claim.MaxDrift, claim.MaxDrift).Draw(t, "leader's clock")
		sent := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "sent"))
		received := sent + time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "on its way"))

		times := NodeTimes(1+boottime.Instant(float64(sent)*node), timeouts)
		if times.Stop > times.Deadline {
			t.Fatal("the fence acts before the agent stops")
		}
		fenced := time.Duration(float64(times.Deadline) / node)
		released := received + time.Duration(float64(claim.ReleaseAfter(timeouts))/leader)
		if left := released - fenced; left < claim.MinStopTime-time.Microsecond {
			t.Fatalf("there is %v to stop", left)
		}
	})
}

// The longer of two timeouts satisfies both promises.
func TestLongestKeepsBoth(t *testing.T) {
	draw := func(t *rapid.T, name string) claim.Liveness {
		d := func(what string) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, name+what))
		}
		return claim.Liveness{HeartbeatTTL: d("ttl"), StopAfter: d("stop"), Margin: d("margin")}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t, "a"), draw(t, "b")
		l := claim.Longest(a, b)
		least := max(claim.ReleaseAfter(a), claim.ReleaseAfter(b))
		if claim.ReleaseAfter(l) < least || claim.Longest(a, a) != a ||
			claim.Longest(b, a) != l {
			t.Fatalf("%v and %v give %v", a, b, l)
		}
	})
}
