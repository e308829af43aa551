package watcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

var errUnreachable = errors.New("connection refused")

// others are the other nodes. Calls are recorded with the node's name.
type others struct{ *world }

func (o *others) ask(ctx context.Context, format string, args ...any) error {
	if o.hanging != "" && slices.Contains(args, any(o.hanging)) {
		o.hangs.Add(1)
		<-ctx.Done()
		return ctx.Err()
	}
	return o.note(format, args...)
}

func (o *others) Owns(ctx context.Context, c claim.Claim) (bool, error) {
	return node{o.world}.Owns(c.Workload), o.ask(ctx, "ask %s", c.Node)
}

func (o *others) DetachUnknown(ctx context.Context, c claim.Claim, _ claim.Volume) error {
	return o.ask(ctx, "unmount %s on %s", c.Volume, c.Node)
}

func (o *others) Detach(ctx context.Context, c claim.Claim, _ claim.Volume) (string, error) {
	return "stopped it there", o.ask(ctx, "stop %s on %s", c.Workload, c.Node)
}

func (w *world) putNode(name, boot string) {
	w.t.Helper()
	if _, err := cluster.Apply(w.t.Context(), w.ledger,
		&command.PutNode{Node: claim.Node{Name: name, BootID: boot}}); err != nil {
		w.t.Fatal(err)
	}
}

// A release that waits for a driver is attempted at once when a new node with that driver appears.
func TestANewNodeBringsADriver(t *testing.T) {
	w := newWorld(t)
	w.firstPause = time.Hour
	w.volume("v")
	w.start("w", "a", "v")
	w.stop("w")
	w.failing("detach v from a as d-a", errAway)
	w.lead()
	// The release is attempted once more when its claim has changed, and then not for an hour.
	w.eventually("the release waits",
		func() bool { a, _ := w.Attempt(ref("v")); return a.Tries == 2 && !a.NextAt.IsZero() })
	w.mu.Lock()
	clear(w.fail) // without a change of a driver of this node
	w.mu.Unlock()
	node := claim.Node{
		Name: "new", BootID: "b",
		Drivers: map[string]claim.NodeDriver{"d": {ID: "d", Type: claim.Monolith}},
	}
	if _, err := cluster.Apply(t.Context(), w.ledger, &command.PutNode{Node: node}); err != nil {
		t.Fatal(err)
	}
	w.freed("v")
}

// A claim on another node is released there. If the node was away, the next attempt is when the node's record changes,
// not before.
func TestAClaimOnAnotherNode(t *testing.T) {
	w := newWorld(t)
	w.Nodes, w.firstPause = &others{world: w}, time.Hour
	w.putNode("b", "1")
	w.failing("ask b", errUnreachable)
	w.lead()
	w.volume("v")
	w.start("w", "b", "v")
	w.stop("w")
	w.eventually("the release waits", func() bool {
		a, _ := w.Attempt(ref("v"))
		return strings.Contains(a.Error, `node "b"`) && strings.Contains(a.Error, errUnreachable.Error()) &&
			strings.Contains(a.Error, "pannier volume detach -force v b") && !a.Since.IsZero() &&
			time.Until(a.NextAt) > time.Minute
	})
	w.mu.Lock()
	delete(w.fail, "ask b")
	w.mu.Unlock()
	w.putNode("b", "2")
	w.freed("v")
	want := []string{"ask b", "unmount v on b", "detach v from b as d-b"}
	if got := slices.Compact(w.log()); !slices.Equal(got, want) {
		t.Errorf("it did %q, want %q", got, want)
	}
}

// Claims that were released because a node is down do not wait for that node.
func TestNodeThatIsDown(t *testing.T) {
	w := newWorld(t)
	w.Nodes, w.firstPause = &others{world: w}, time.Hour
	w.putNode("b", "1")
	w.failing("ask b", errUnreachable)
	w.lead()
	w.volume("v")
	w.volume("left")
	w.start("runs", "b", "v")
	w.start("ends", "b", "left")
	w.stop("ends")
	w.eventually("the release waits", func() bool { a, _ := w.Attempt(ref("left")); return a.Error != "" })
	if _, err := cluster.SetNodeStatus(t.Context(), w.ledger, "b", claim.NodeDown, ""); err != nil {
		t.Fatal(err)
	}
	w.freed("v")
	w.freed("left")
	w.eventually("the events say who released them", func() bool {
		by := 0
		for _, e := range w.Events.Recent(100) {
			if e.Type == "freed" && strings.HasSuffix(e.Message, `by the leader, because node "b" is down`) {
				by++
			}
		}
		return by == 2
	})
}

// More volumes wait for a node or a driver that hangs than are attempted at the same time; others are released
// nevertheless.
func TestHangingDependencyHoldsUpNoOther(t *testing.T) {
	for what, hanging := range map[string]string{"node": "b", "driver": "slow"} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.Nodes, w.hanging = &others{w}, hanging
			for n := range parallelPerDependency + 5 {
				id := fmt.Sprintf("hangs-%d", n)
				w.volumeOf("slow", id)
				w.start(id, "b", id)
				w.stop(id)
			}
			stop := w.lead()
			w.eventually("it is called as often as it may be", func() bool {
				busy := 0
				for n := range parallelPerDependency + 5 {
					if a, _ := w.Attempt(ref(fmt.Sprintf("hangs-%d", n))); a.Tries > 0 {
						busy++
					}
				}
				return busy >= parallelPerDependency && w.hangs.Load() >= callsPerDependency
			})
			w.volume("v")
			w.start("w", "c", "v")
			w.stop("w")
			w.freed("v")
			if n := w.hangs.Load(); n != callsPerDependency {
				t.Errorf("%d calls at once, want %d", n, callsPerDependency)
			}
			stop()
		})
	}
}

// A server that leads a second time starts from the ledger; earlier attempts do not matter.
func TestALeaderLeadsAgain(t *testing.T) {
	w := newWorld(t)
	w.firstPause = time.Hour
	w.failing("detach v from a as d-a", errAway)
	stop := w.lead()
	w.volume("v")
	w.start("w", "a", "v")
	w.stop("w")
	w.eventually("the release waits", func() bool { a, _ := w.Attempt(ref("v")); return a.Error != "" })
	stop()
	if _, ok := w.Attempt(ref("v")); ok {
		t.Error("a server that does not lead reports an attempt")
	}
	w.mu.Lock()
	delete(w.fail, "detach v from a as d-a")
	w.mu.Unlock()
	w.lead()
	w.freed("v")
}

func TestDetachOnAnotherNode(t *testing.T) {
	w := newWorld(t)
	w.Nodes, w.forceDelay = &others{world: w}, 100*time.Millisecond
	w.lead()
	w.volume("v")
	w.start("w", "b", "v")
	// A node that answers is not down.
	got, err := w.Detach(t.Context(), ref("v"), "b", true, "op")
	if err != nil || got[0].Released || !strings.Contains(got[0].Message, "without -force") {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = w.Detach(t.Context(), ref("v"), "b", false, "op")
	if err != nil || !got[0].Released || got[0].Message != "stopped it there" {
		t.Errorf("got %+v, %v", got, err)
	}
	// If it does not answer, the operator is believed; a controller that is away cannot keep its claim.
	w.failing("ask b", errUnreachable)
	w.failing("stop w on b", errUnreachable)
	w.failing("detach v from b as d-b", errAway)
	w.start("w", "b", "v")
	got, err = w.Detach(t.Context(), ref("v"), "b", false, "op")
	if err != nil || got[0].Released || !strings.Contains(got[0].Message, errUnreachable.Error()) {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = w.Detach(t.Context(), ref("v"), "b", true, "op")
	if err != nil || !got[0].Released || !strings.Contains(got[0].Message, "an attachment") {
		t.Errorf("got %+v, %v", got, err)
	}
	w.freed("v")
	// If the controller is there, the volume is detached before other nodes can have it.
	w.failing("detach v from b as d-b", nil)
	w.forceDelay = timeout
	w.start("w", "b", "v")
	got, err = w.Detach(t.Context(), ref("v"), "b", true, "op")
	if err != nil || !got[0].Released || strings.Contains(got[0].Message, "an attachment") {
		t.Errorf("got %+v, %v", got, err)
	}
	if all := w.log(); all[len(all)-1] != "detach v from b as d-b" {
		t.Errorf("it did %q", all)
	}
}

func TestGarbage(t *testing.T) {
	w := newWorld(t)
	w.GC.Nodes, w.GC.Workloads = -time.Minute, -time.Minute
	w.volume("v")
	for _, name := range []string{"a", "b", "c"} {
		w.putNode(name, "1")
	}
	w.start("w", "b", "v")
	w.start("old", "a")
	w.stop("old")
	for _, name := range []string{"b", "c"} {
		if _, err := cluster.SetNodeStatus(t.Context(), w.ledger, name, claim.NodeDown, ""); err != nil {
			t.Fatal(err)
		}
	}
	token := acl.Token{
		Accessor: "00000000-0000-4000-8000-000000000001", SecretHash: strings.Repeat("ab", 32),
		Name: "short", Type: acl.Management, ExpiresAt: time.Now().Add(10 * time.Millisecond),
	}
	if _, err := cluster.Apply(t.Context(), w.ledger, &command.PutACLTokens{Tokens: []acl.Token{token}}); err != nil {
		t.Fatal(err)
	}
	for time.Now().Before(token.ExpiresAt) {
		time.Sleep(time.Millisecond)
	}
	list := func(found []Garbage, err error) (names []string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range found {
			if g.Reason == "" || g.Since.IsZero() {
				t.Errorf("%+v", g)
			}
			names = append(names, string(g.Kind)+" "+g.ID)
		}
		return names
	}
	want := []string{"workload old", "node c", "acl-token " + token.Accessor}
	for _, dryRun := range []bool{true, true, false} {
		if got := list(w.Collect(t.Context(), dryRun)); !slices.Equal(got, want) {
			t.Errorf("dry run %v: %q, want %q: what holds something, or is young, stays", dryRun, got, want)
		}
	}
	if got := list(w.Collect(t.Context(), false)); len(got) > 0 {
		t.Errorf("%q is left", got)
	}
	w.GC.Nodes = 0
	w.putNode("d", "1")
	if _, err := cluster.SetNodeStatus(t.Context(), w.ledger, "d", claim.NodeDown, ""); err != nil {
		t.Fatal(err)
	}
	if got := list(w.Collect(t.Context(), false)); len(got) > 0 {
		t.Errorf("%q went although nodes are kept for ever", got)
	}
}
