package state

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

func nodeOf(t *testing.T, l *ledger, name string) (n claim.Node) {
	t.Helper()
	view(t, l, func(tx *ReadTx) (err error) {
		n, err = tx.Node(name)
		return err
	})
	return n
}

// TestNodesKeepWhatTheLedgerKnows: a node's report never changes the fields that the ledger sets.
func TestNodesKeepWhatTheLedgerKnows(t *testing.T) {
	l := open(t)
	say := func(with func(*claim.Node)) (command.PutNodeResult, error) {
		n := claim.Node{Name: "a", BootID: "boot", SecretHash: hashOf(1)}
		with(&n)
		r, err := l.do(&command.PutNode{Node: n})
		result, _ := r.(command.PutNodeResult)
		return result, err
	}
	nothing := func(*claim.Node) {}
	lies := func(n *claim.Node) {
		n.Status, n.Ineligible, n.Drain = claim.NodeDown, true, &claim.Drain{By: "itself"}
	}
	if got, err := say(lies); err != nil || !got.Node.Ready() || got.Node.Ineligible || got.Node.Drain != nil {
		t.Fatalf("it made itself %+v, %v", got.Node, err)
	}
	ineligible := true
	l.must(&command.SetNodeDuty{Name: "a", Ineligible: &ineligible, Drain: &claim.Drain{By: "root"}})
	before := l.records()
	if got, err := say(lies); err != nil || got.Changed || got.Node.Drain.By != "root" {
		t.Errorf("after the same report: %+v, %v", got, err)
	}
	for name, hash := range map[string]string{"another secret": hashOf(2), "no secret": ""} {
		_, err := say(func(n *claim.Node) { n.SecretHash = hash })
		if !errors.Is(err, claim.ErrNodeSecret) || !strings.Contains(err.Error(), "pannier node purge a") ||
			strings.Contains(err.Error(), hashOf(2)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := say(func(n *claim.Node) { n.SecretHash = "secret" }); !errors.Is(err, claim.ErrInvalid) {
		t.Errorf("no hash: %v", err)
	}
	l.sameAs(before, "a repeated report writes, or is refused")

	for _, status := range []claim.NodeStatus{claim.NodeDisconnected, claim.NodeDown} {
		l.must(&command.SetNodeStatus{Name: "a", Status: status})
		if got := nodeOf(t, l, "a"); got.Status != status || got.StatusIndex != l.index || got.StatusAt.IsZero() {
			t.Errorf("set to %+v", got)
		}
		got, err := say(nothing)
		if err != nil || !got.Changed || got.Node.Status != claim.NodeReady || got.Node.StatusIndex != l.index ||
			!got.Node.Ineligible || got.Node.Drain == nil {
			t.Errorf("a report after %s: %+v, %v", status, got, err)
		}
	}

	// The secret of the first report is stored.
	l.must(&command.PutNode{Node: claim.Node{Name: "b"}})
	l.must(&command.PutNode{Node: claim.Node{Name: "b", SecretHash: hashOf(3)}})
	if got := nodeOf(t, l, "b"); got.SecretHash != hashOf(3) {
		t.Errorf("the secret's hash is %q", got.SecretHash)
	}
	// After a purge the node may report a different secret.
	l.must(&command.DeleteNode{Name: "b"})
	l.must(&command.PutNode{Node: claim.Node{Name: "b", SecretHash: hashOf(4)}})
}

func TestNodesThatTakeNoWorkloads(t *testing.T) {
	yes, no := true, false
	for name, row := range map[string]struct {
		set  command.Command
		undo command.Command
		says string
	}{
		"disconnected": {
			&command.SetNodeStatus{Name: "a", Status: claim.NodeDisconnected},
			&command.SetNodeStatus{Name: "a", Status: claim.NodeReady}, "pannier node status a",
		},
		"down": {
			&command.SetNodeStatus{Name: "a", Status: claim.NodeDown},
			&command.PutNode{Node: claim.Node{Name: "a"}}, "pannier node status a",
		},
		"ineligible": {
			&command.SetNodeDuty{Name: "a", Ineligible: &yes}, &command.SetNodeDuty{Name: "a", Ineligible: &no},
			"pannier node eligibility -enable a",
		},
		"drained": {
			&command.SetNodeDuty{Name: "a", Drain: &claim.Drain{By: "root"}},
			&command.SetNodeDuty{Name: "a", StopDrain: true}, "pannier node drain -disable a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := open(t)
			l.must(&command.StartWorkload{Ref: workload("runs"), Node: "a"}) // the ledger does not know the node yet
			l.must(&command.PutNode{Node: claim.Node{Name: "a"}})
			l.must(&command.StartWorkload{Ref: workload("earlier"), Node: "a"})
			l.must(row.set)
			before := l.records()
			for _, c := range []command.Command{
				&command.StartWorkload{Ref: workload("new"), Node: "a"},
				&command.AwaitWorkload{Ref: workload("new"), Node: "a"},
			} {
				_, err := l.do(c)
				if !errors.Is(err, claim.ErrIneligible) || !strings.Contains(err.Error(), `node "a"`) ||
					!strings.Contains(err.Error(), row.says) {
					t.Errorf("%T: %v", c, err)
				}
			}
			l.sameAs(before, "refused")
			if name != "down" {
				l.must(&command.StartWorkload{Ref: workload("runs"), Node: "a"}) // it exists already
			}
			l.must(&command.StartWorkload{Ref: workload("elsewhere"), Node: "b"})
			l.must(row.undo)
			l.must(&command.StartWorkload{Ref: workload("new"), Node: "a"})
		})
	}
}

// TestControllersThatGetSecrets: the first node that reports a controller is one, another when an operator approves it;
// no node makes itself one.
func TestControllersThatGetSecrets(t *testing.T) {
	l := open(t)
	report := func(node string, kind claim.DriverType) {
		t.Helper()
		n := claim.Node{Name: node, ControllerOf: []string{"d"}}
		if kind != "" {
			n.Drivers = map[string]claim.NodeDriver{"d": {ID: "d", Type: kind}}
		}
		l.must(&command.PutNode{Node: n})
	}
	want := func(when string, nodes ...string) {
		t.Helper()
		var got []string
		for _, name := range []string{"a", "b", "c"} {
			if slices.Contains(nodeOf(t, l, name).ControllerOf, "d") {
				got = append(got, name)
			}
		}
		if !slices.Equal(got, nodes) {
			t.Errorf("%s: %q get secrets, want %q", when, got, nodes)
		}
	}
	report("a", claim.NodeService)
	report("b", claim.ControllerService)
	report("c", claim.Monolith)
	report("a", claim.Monolith)
	want("the first is b", "b")
	for _, node := range []string{"a", "b", "c"} {
		report(node, "")
	}
	report("a", claim.Monolith)
	want("while b does not have it", "b")
	l.must(&command.SetNodeDuty{Name: "a", Approve: "d"})
	l.must(&command.SetNodeDuty{Name: "a", Approve: "d"})
	l.must(&command.SetNodeDuty{Name: "b", Revoke: "d"})
	report("b", claim.Monolith)
	want("approved and revoked", "a")
	l.must(&command.DeleteNode{Name: "a"})
	report("a", claim.Monolith)
	report("c", claim.Monolith)
	want("after a purge")
	if _, err := l.do(&command.SetNodeDuty{Name: "a", Approve: "../d"}); err == nil {
		t.Error("a driver of any name is approved")
	}
}

// TestABoundNode: an operator's rule about a node's namespaces counts at each start, and no report of the node ends it.
func TestABoundNode(t *testing.T) {
	l := open(t)
	in := func(namespace string) claim.WorkloadRef { return claim.WorkloadRef{Namespace: namespace, ID: "w"} }
	start := func(namespace string) error {
		_, err := l.do(&command.StartWorkload{Ref: in(namespace), Node: "a"})
		return err
	}
	bind := func(namespaces ...string) error {
		_, err := l.do(&command.SetNodeDuty{Name: "a", Namespaces: &namespaces})
		return err
	}
	l.must(&command.PutNode{Node: claim.Node{Name: "a", Namespaces: []string{"lies"}}})
	check.NoError(t, start("first"))
	check.NoError(t, bind("dev", "shop-*"))
	l.must(&command.PutNode{Node: claim.Node{Name: "a", BootID: "another"}})
	for _, namespace := range []string{"prod", "shop", "dev2", "my-shop-1"} {
		err := start(namespace)
		if !errors.Is(err, claim.ErrUnbound) || !strings.Contains(err.Error(), `node "a"`) {
			t.Errorf("%s: %v", namespace, err)
		}
		if _, err := l.do(&command.AwaitWorkload{Ref: in(namespace), Node: "a"}); !errors.Is(err, claim.ErrUnbound) {
			t.Errorf("a wait in %s: %v", namespace, err)
		}
	}
	for _, namespace := range []string{"dev", "shop-", "shop-1", "first"} { // the last one runs already
		check.NoError(t, start(namespace))
	}
	for _, bad := range []string{"", "a b", "[a-z]", "a?", strings.Repeat("x", 129)} {
		if err := bind(bad); !errors.Is(err, claim.ErrInvalid) {
			t.Errorf("bound to %q: %v", bad, err)
		}
	}
	check.NoError(t, bind([]string{}...))
	l.must(&command.SetNodeDuty{Name: "a", StopDrain: true}) // leaves them as they are
	check.NoError(t, start("prod"))
}

func TestNodeDuty(t *testing.T) {
	l := open(t)
	l.must(&command.PutNode{Node: claim.Node{Name: "a"}})
	drain := func(d claim.Drain) *claim.Drain {
		return l.must(&command.SetNodeDuty{Name: "a", Drain: &d}).(claim.Node).Drain
	}
	if got := drain(claim.Drain{DoneAt: now}); got != nil {
		t.Errorf("completed a drain that does not exist: %+v", got)
	}
	begun := drain(claim.Drain{By: "root"})
	if begun.By != "root" || begun.StartedAt.IsZero() || !begun.DoneAt.IsZero() {
		t.Fatalf("begun as %+v", begun)
	}
	before := l.records()
	drain(claim.Drain{By: "other"})
	drain(claim.Drain{StartedAt: now.Add(-time.Hour), DoneAt: now})
	l.must(&command.SetNodeDuty{Name: "a"})
	l.sameAs(before, "drained already, a report on another drain, and nothing wanted")
	if got := drain(claim.Drain{StartedAt: begun.StartedAt, DoneAt: now.Add(time.Hour)}); got.By != "root" ||
		!got.StartedAt.Equal(begun.StartedAt) || got.DoneAt.IsZero() {
		t.Errorf("done: %+v", got)
	}
	if got := l.must(&command.SetNodeDuty{Name: "a", StopDrain: true}).(claim.Node); got.Drain != nil {
		t.Errorf("stopped: %+v", got.Drain)
	}
	for name, c := range map[string]command.Command{
		"duty":   &command.SetNodeDuty{Name: "b", StopDrain: true},
		"status": &command.SetNodeStatus{Name: "b", Status: claim.NodeDown},
	} {
		if _, err := l.do(c); !errors.Is(err, claim.ErrNodeNotFound) || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("%s of an unknown node: %v", name, err)
		}
	}
	l.refused("an unknown status", claim.ErrInvalid, &command.SetNodeStatus{Name: "a", Status: "asleep"})
}

// TestDownTakesAll releases a node that has more than one command can release, with claims of ended
// workloads.
func TestDownTakesAll(t *testing.T) {
	l := open(t)
	l.must(&command.PutNode{Node: claim.Node{Name: "a"}})
	l.must(&command.RegisterVolume{Volume: volume("v", claim.MultiNodeMultiWriter)})
	start := func(id, node string) {
		l.must(&command.StartWorkload{
			Ref: workload(id), Node: node,
			Claims: []claim.Claim{wanted("v", claim.MultiNodeMultiWriter, claim.Write)},
		})
	}
	const many = 2*command.MaxItems + 7
	for i := range many {
		start(fmt.Sprint("w", i), "a")
	}
	for i := range many {
		start(fmt.Sprint("ended", i), "a")
		l.must(&command.EndWorkload{Ref: workload(fmt.Sprint("ended", i))})
	}
	l.must(&command.AwaitWorkload{Ref: workload("waits"), Node: "a", After: []claim.WorkloadRef{workload("elsewhere")}})
	start("elsewhere", "b")
	start("gone", "a")
	l.must(&command.EndWorkload{Ref: workload("gone")})
	l.must(&command.AdvanceClaims{Items: []command.Advance{{
		Volume: ref("v"), Workload: workload("gone"),
		To: claim.NodeDetached,
	}}})

	ended, freed, commands := 0, map[claim.WorkloadRef]bool{}, 0
	c := command.SetNodeStatus{Name: "a", Status: claim.NodeDown, By: "root"}
	for more := true; more; {
		one := c
		result := l.must(&one).(command.SetNodeStatusResult)
		if len(result.Freed) > command.MaxItems {
			t.Fatalf("%d claims in one command", len(result.Freed))
		}
		ended += len(result.Ended)
		for _, f := range result.Freed {
			if f.State != claim.NodeDetached || f.ForcedBy != "root" || f.Node != "a" || freed[f.Workload] {
				t.Fatalf("released %+v", f)
			}
			freed[f.Workload] = true
		}
		c.Continues, c.After, more = result.Node.StatusIndex, result.Next, result.More
		if commands++; commands > 20 {
			t.Fatalf("it does not end: ended %d of %d, released %d of %d", ended, many+1, len(freed), 2*many)
		}
		if commands == 3 {
			c.Continues, c.After = 0, "" // another leader starts over
		}
	}
	if ended != many+1 || len(freed) != 2*many {
		t.Errorf("ended %d of %d, released %d of %d", ended, many+1, len(freed), 2*many)
	}
	view(t, l, func(tx *ReadTx) error {
		held, err := tx.ClaimsOn("a")
		for _, c := range held {
			if c.State != claim.NodeDetached || (c.ForcedBy == "root") != (c.Workload != workload("gone")) {
				t.Errorf("claim %+v", c)
			}
		}
		if live, err := tx.WorkloadsOn("a"); err != nil || len(live) != 0 || len(held) != 2*many+1 {
			t.Errorf("%d workloads and %d claims are left, %v", len(live), len(held), err)
		}
		if other, err := tx.Claim(ref("v"), workload("elsewhere")); err != nil || other.State != claim.Taken {
			t.Errorf("on another node: %+v, %v", other, err)
		}
		return err
	})
	before := l.records()
	l.must(&command.SetNodeStatus{Name: "a", Status: claim.NodeDown, By: "root"})
	if got := l.must(&command.SetNodeStatus{
		Name:   "a",
		Status: claim.NodeDisconnected,
	}).(command.SetNodeStatusResult); got.Node.Status != claim.NodeDown {
		t.Errorf("a node that was down became %s", got.Node.Status)
	}
	l.sameAs(before, "down already")
}

// TestDownStopsWhereANodeIsBack: a command that was sent before a node came back does not release workloads
// that were started afterwards.
func TestDownStopsWhereANodeIsBack(t *testing.T) {
	l := open(t)
	l.must(&command.PutNode{Node: claim.Node{Name: "a"}})
	l.must(&command.RegisterVolume{Volume: volume("v", claim.MultiNodeMultiWriter)})
	for i := range command.MaxItems + 1 {
		l.must(&command.StartWorkload{Ref: workload(fmt.Sprint("w", i)), Node: "a"})
	}
	first := l.must(&command.SetNodeStatus{Name: "a", Status: claim.NodeDown}).(command.SetNodeStatusResult)
	if !first.More {
		t.Fatal("everything was released at once")
	}
	l.must(&command.PutNode{Node: claim.Node{Name: "a"}})
	l.must(&command.StartWorkload{
		Ref: workload("new"), Node: "a",
		Claims: []claim.Claim{wanted("v", claim.MultiNodeMultiWriter, claim.Write)},
	})
	before := l.records()
	second := l.must(&command.SetNodeStatus{
		Name: "a", Status: claim.NodeDown, Continues: first.Node.StatusIndex,
		After: first.Next,
	}).(command.SetNodeStatusResult)
	if second.More || len(second.Ended) > 0 || len(second.Freed) > 0 || second.Node.Status != claim.NodeReady {
		t.Errorf("released %+v", second)
	}
	l.sameAs(before, "the node is back")
}

// TestDeleteNodeThatIsBack: the node is removed only if it has not changed since it was read as down.
func TestDeleteNodeThatIsBack(t *testing.T) {
	l := open(t)
	l.must(&command.PutNode{Node: claim.Node{Name: "a"}})
	down := func() *command.DeleteNode {
		node := l.must(&command.SetNodeStatus{Name: "a", Status: claim.NodeDown}).(command.SetNodeStatusResult).Node
		return &command.DeleteNode{Name: "a", IfDown: node.StatusIndex}
	}
	first := down()
	l.must(&command.PutNode{Node: claim.Node{Name: "a"}})
	left := func(why string) {
		t.Helper()
		before := l.records()
		if got := l.must(first).(command.DeleteNodeResult); got.Found {
			t.Errorf("%s: it was removed", why)
		}
		l.sameAs(before, why)
	}
	left("it is back")
	second := down()
	left("it went down again")
	if got := l.must(second).(command.DeleteNodeResult); !got.Found {
		t.Error("it stayed down, and was not removed")
	}
}

func TestDeleteNodeThatIsInUse(t *testing.T) {
	l := open(t)
	l.must(&command.PutNode{Node: claim.Node{Name: "a"}})
	l.must(&command.RegisterVolume{Volume: volume("v", claim.MultiNodeMultiWriter)})
	refused := func(what string) {
		t.Helper()
		before := l.records()
		_, err := l.do(&command.DeleteNode{Name: "a"})
		if !errors.Is(err, claim.ErrNodeInUse) || !strings.Contains(err.Error(), what) ||
			!strings.Contains(err.Error(), "pannier node purge -force a") {
			t.Errorf("got %v, want one that names %s", err, what)
		}
		l.sameAs(before, "refused")
	}
	l.must(&command.AwaitWorkload{Ref: workload("w"), Node: "a"})
	refused(`workload "w"`)
	l.must(&command.StartWorkload{
		Ref: workload("w"), Node: "a",
		Claims: []claim.Claim{wanted("v", claim.MultiNodeMultiWriter, claim.Write)},
	})
	refused(`workload "w"`)
	l.must(&command.EndWorkload{Ref: workload("w")})
	refused(`volume "v"`)
	l.must(&command.AdvanceClaims{Items: []command.Advance{{Volume: ref("v"), Workload: workload("w"), To: claim.Freed}}})
	if got := l.must(&command.DeleteNode{Name: "a"}).(command.DeleteNodeResult); !got.Found {
		t.Error("not found")
	}
}

// start starts a workload that writes to a volume.
func (l *ledger) start(id, node, held string) {
	l.t.Helper()
	want := wanted(held, claim.SingleNodeWriter, claim.Write)
	l.must(&command.StartWorkload{Ref: workload(id), Node: node, Claims: []claim.Claim{want}})
}

// TestAnotherBootWaits: after a reboot a node becomes ready only when nothing of its earlier boot can use its
// claims.
func TestAnotherBootWaits(t *testing.T) {
	l := open(t)
	boot := func(id string) error {
		_, err := l.do(&command.PutNode{Node: claim.Node{Name: "a", BootID: id, SecretHash: hashOf(1)}})
		return err
	}
	check.NoError(t, boot("first"))
	if first := nodeOf(t, l, "a"); first.LostIndex != first.CreateIndex {
		t.Errorf("a new node does not have to compare: %+v", first)
	}
	check.NoError(t, boot("second")) // the node has no claims
	for _, v := range []string{"v", "w"} {
		l.must(&command.RegisterVolume{Volume: volume(v, claim.SingleNodeWriter)})
	}
	l.start("one", "a", "v")
	before := l.records()
	if err := boot("third"); !errors.Is(err, claim.ErrEarlierBoot) {
		t.Errorf("the claims of the second boot: %v", err)
	}
	l.sameAs(before, "refused")
	check.NoError(t, boot("second"))
	l.must(&command.SetNodeStatus{Name: "a", Status: claim.NodeDisconnected})
	if err := boot("third"); !errors.Is(err, claim.ErrEarlierBoot) {
		t.Errorf("disconnected, it may write: %v", err)
	}
	l.must(&command.SetNodeStatus{Name: "a", Status: claim.NodeDown})
	check.NoError(t, boot("third"))

	// A standalone host has no lease.
	l.must(&command.PutNode{Node: claim.Node{Name: "alone", BootID: "first"}})
	l.start("two", "alone", "w")
	l.must(&command.PutNode{Node: claim.Node{Name: "alone", BootID: "second"}})
}

// TestNodeIsToldOfLostClaims: a claim that an operator releases is recorded in its node, and a claim that the
// node itself releases is not.
func TestNodeIsToldOfLostClaims(t *testing.T) {
	l := open(t)
	l.must(&command.PutNode{Node: claim.Node{Name: "a", BootID: "boot", SecretHash: hashOf(1)}})
	was := nodeOf(t, l, "a").LostIndex
	for _, v := range []string{"v", "w"} {
		l.must(&command.RegisterVolume{Volume: volume(v, claim.SingleNodeWriter)})
	}
	for i, by := range []string{"", "root"} {
		held, run := []string{"v", "w"}[i], []string{"one", "two"}[i]
		l.start(run, "a", held)
		l.must(&command.AdvanceClaims{
			Items: []command.Advance{{Volume: ref(held), Workload: workload(run), To: claim.NodeDetached}}, By: by,
		})
		if now := nodeOf(t, l, "a").LostIndex; (now == l.index) != (by != "") {
			t.Errorf("released by %q at %d, noted %d, before that %d", by, l.index, now, was)
		}
	}
}
