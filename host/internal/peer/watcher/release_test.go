package watcher

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

var errAway = errors.New("the driver is away")

func TestAClaimIsReleasedInOrder(t *testing.T) {
	w := newWorld(t)
	w.lead()
	w.volume("v")
	w.start("w", "a", "v")
	w.stop("w")
	w.freed("v")
	if got := w.log(); !slices.Equal(got, []string{"unmount v of w", "detach v from a as d-a"}) {
		t.Errorf("it did %q", got)
	}
}

func TestNewLeaderContinuesFromEachState(t *testing.T) {
	for from, want := range map[claim.State][]string{
		claim.Unpublishing: {"unmount v of w", "detach v from a as d-a"},
		claim.NodeDetached: {"detach v from a as d-a"},
	} {
		t.Run(string(from), func(t *testing.T) {
			w := newWorld(t)
			w.volume("v")
			w.start("w", "a", "v")
			w.stop("w")
			if _, err := cluster.Apply(t.Context(), w.ledger,
				&command.AdvanceClaims{Items: []command.Advance{{
					Volume: ref("v"), Workload: workloadRef("w"),
					To: from,
				}}}); err != nil {
				t.Fatal(err)
			}
			w.lead()
			w.freed("v")
			if got := w.log(); !slices.Equal(got, want) {
				t.Errorf("it did %q, want %q", got, want)
			}
		})
	}
}

// Workloads that the node stops itself are left to it until it is done.
func TestTheNodesOwnWorkloadIsLeftToIt(t *testing.T) {
	w := newWorld(t)
	w.owned[workloadRef("w")] = true
	w.lead()
	w.volume("v")
	w.start("w", "a", "v")
	w.stop("w")
	w.eventually("the watcher has looked at it", func() bool {
		a, ok := w.Attempt(ref("v"))
		return ok && a.Tries > 0
	})
	if _, err := cluster.Apply(t.Context(), w.ledger,
		&command.AdvanceClaims{Items: []command.Advance{{
			Volume: ref("v"), Workload: workloadRef("w"),
			To: claim.NodeDetached,
		}}}); err != nil {
		t.Fatal(err)
	}
	w.freed("v")
	if got := w.log(); !slices.Equal(got, []string{"detach v from a as d-a"}) {
		t.Errorf("it did %q", got)
	}
}

// Only the last claim of a volume on a node detaches it; claims on other nodes do not count.
func TestOnlyTheLastClaimOnANodeDetaches(t *testing.T) {
	w := newWorld(t)
	w.lead()
	w.volume("v")
	w.start("w1", "a", "v")
	w.start("w2", "a", "v")
	w.start("far", "b", "v")
	w.stop("w1")
	w.eventually("the first is gone", func() bool { return len(w.claims("v")) == 2 })
	w.stop("w2")
	w.eventually("the second is gone", func() bool { return len(w.claims("v")) == 1 })
	if got := w.log(); !slices.Equal(got, []string{"unmount v of w1", "unmount v of w2", "detach v from a as d-a"}) {
		t.Errorf("it did %q", got)
	}
}

// A claim that is taken after the release has begun, but before it decides, keeps the volume attached.
func TestDetachDecidesFromTheLatestClaims(t *testing.T) {
	w := newWorld(t)
	w.volume("v")
	w.start("w1", "a", "v")
	w.stop("w1")
	w.gate = func() { w.start("late", "a", "v") }
	w.lead()
	w.eventually("the first is gone", func() bool {
		c := w.claims("v")
		return len(c) == 1 && c[0].Workload.ID == "late"
	})
	if got := w.log(); slices.Contains(got, "detach v from a as d-a") {
		t.Errorf("it detached a volume that is in use: %q", got)
	}
}

func TestReleaseIsRetriedWhenADriverChanges(t *testing.T) {
	for _, what := range []string{"unmount v of w", "detach v from a as d-a"} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.failing(what, errAway)
			w.lead()
			w.volume("v")
			w.volume("other")
			w.start("w", "a", "v")
			w.start("o", "a", "other")
			w.stop("w")
			w.eventually("the release waits", func() bool {
				a, ok := w.Attempt(ref("v"))
				return ok && strings.Contains(a.Error, errAway.Error()) && a.NextAt.After(time.Now().Add(-time.Minute))
			})
			w.stop("o")
			w.freed("other") // one volume's trouble is not another's
			w.failing(what, nil)
			w.freed("v")
			w.eventually("nothing is remembered of it", func() bool { _, ok := w.Attempt(ref("v")); return !ok })
		})
	}
}

// What no controller was asked to attach is freed, whether or not there is a controller.
func TestNotAttachedNotDetached(t *testing.T) {
	w := newWorld(t)
	w.attaches = false
	w.lead()
	w.volume("v")
	w.start("w", "a", "v")
	w.stop("w")
	w.freed("v")
	if got := w.log(); !slices.Equal(got, []string{"unmount v of w"}) {
		t.Errorf("it did %q", got)
	}
}

// A volume that is deregistered by force while it is being released ends its release.
func TestADeregisteredVolumeEndsItsRelease(t *testing.T) {
	w := newWorld(t)
	w.failing("unmount v of w", errAway)
	w.lead()
	w.volume("v")
	w.start("w", "a", "v")
	w.stop("w")
	w.eventually("the release waits", func() bool { a, ok := w.Attempt(ref("v")); return ok && a.Error != "" })
	if _, err := cluster.DeregisterVolume(t.Context(), w.ledger, ref("v"), true); err != nil {
		t.Fatal(err)
	}
	w.eventually("the release has ended", func() bool { _, ok := w.Attempt(ref("v")); return !ok })
}

func TestDetach(t *testing.T) {
	w := newWorld(t)
	w.lead()
	w.volume("v")
	if _, err := w.Detach(t.Context(), ref("v"), "a", false, "op"); !errors.Is(err, ErrNoClaims) ||
		!strings.Contains(err.Error(), `node "a"`) {
		t.Errorf("without a claim: %v", err)
	}
	w.start("w1", "a", "v")
	w.start("far", "b", "v")
	got, err := w.Detach(t.Context(), ref("v"), "a", false, "op")
	if err != nil || len(got) != 1 || !got[0].Released || got[0].Claim.Workload.ID != "w1" ||
		got[0].Claim.State != claim.Taken {
		t.Fatalf("got %+v, %v", got, err)
	}
	if c := w.claims("v"); len(c) != 1 || c[0].Node != "b" {
		t.Errorf("claims are left: %+v", c)
	}
	// A node that cannot be reached keeps its claims, unless an operator vouches that it is down.
	got, err = w.Detach(t.Context(), ref("v"), "b", false, "op")
	if err != nil || got[0].Released || !strings.Contains(got[0].Message, "detach -force v b") {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = w.Detach(t.Context(), ref("v"), "b", true, "op")
	if err != nil || !got[0].Released || !strings.Contains(got[0].Message, "op") {
		t.Errorf("got %+v, %v", got, err)
	}
	w.freed("v")
}

// revived is a node whose workload is started again as soon as it was stopped.
type revived struct {
	node
	again func()
}

func (r revived) Detach(ctx context.Context, c claim.Claim, v claim.Volume) (string, error) {
	did, err := r.node.Detach(ctx, c, v)
	r.stop(c.Workload.ID)
	r.eventually("the claim is freed", func() bool { return r.claim(c.Volume, c.Workload).Index != c.Index })
	r.again()
	return did, err
}

// The workload is started again, there or on another node, before the operator's call has ended.
func TestDetachLeavesTheNextRunAlone(t *testing.T) {
	for _, next := range []string{"a", "b"} {
		w := newWorld(t)
		w.Node = revived{node{w}, func() { w.start("w", next, "v") }}
		w.lead()
		w.volume("v")
		w.start("w", "a", "v")
		got, err := w.Detach(t.Context(), ref("v"), "a", false, "op")
		if err != nil || len(got) != 1 || !got[0].Released {
			t.Fatalf("got %+v, %v", got, err)
		}
		if c := w.claims("v"); len(c) != 1 || c[0].Node != next || c[0].State != claim.Taken {
			t.Errorf("the next run on %s has %+v", next, c)
		}
	}
}

// A node that did not answer has started the workload again before its earlier claim is freed by force.
func TestForcedDetachLeavesTheNextRunAlone(t *testing.T) {
	w := newWorld(t)
	w.lead()
	w.volume("v")
	w.start("w", "b", "v")
	before := w.claims("v")[0]
	w.stop("w")
	if _, err := cluster.Apply(t.Context(), w.ledger, &command.AdvanceClaims{Items: []command.Advance{{
		Volume: ref("v"), Workload: workloadRef("w"), To: claim.NodeDetached,
	}}}); err != nil {
		t.Fatal(err)
	}
	w.freed("v")
	w.start("w", "b", "v")
	if _, err := w.force(t.Context(), before, "op"); err != nil {
		t.Error(err)
	}
	if c := w.claims("v"); len(c) != 1 || c[0].State != claim.Taken {
		t.Errorf("the next run has %+v", c)
	}
}

func TestDetachSaysWhyNot(t *testing.T) {
	w := newWorld(t)
	w.lead()
	w.volume("v")
	w.start("w", "a", "v")
	w.failing("stop w", errors.New("its process still runs"))
	got, err := w.Detach(t.Context(), ref("v"), "a", false, "op")
	if err != nil || got[0].Released || !strings.Contains(got[0].Message, "its process still runs") {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = w.Detach(t.Context(), ref("v"), "a", true, "op")
	if err != nil || got[0].Released || !strings.Contains(got[0].Message, "without -force") {
		t.Errorf("this node is up: got %+v, %v", got, err)
	}
	w.failing("stop w", nil)
	w.failing("detach v from a as d-a", errAway)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		w.eventually("the release has failed once", func() bool {
			a,
				ok := w.Attempt(ref("v"))
			return ok && a.Error != ""
		})
		cancel()
	}()
	got, err = w.Detach(ctx, ref("v"), "a", false, "op")
	if err != nil || got[0].Released || !strings.Contains(got[0].Message, errAway.Error()) ||
		!strings.Contains(got[0].Message, "continues") {
		t.Errorf("got %+v, %v", got, err)
	}
	w.failing("detach v from a as d-a", nil)
	w.freed("v")
}
