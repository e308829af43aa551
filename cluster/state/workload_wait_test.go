package state

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

func refs(ids ...string) (out []claim.WorkloadRef) {
	for _, id := range ids {
		out = append(out, workload(id))
	}
	return out
}

func await(id, node string, after ...string) *command.AwaitWorkload {
	return &command.AwaitWorkload{Ref: workload(id), Node: node, After: refs(after...)}
}

func TestAwaitThenStart(t *testing.T) {
	l := open(t)
	l.must(&command.StartWorkload{Ref: workload("first"), Node: "a"})
	l.must(&command.StartWorkload{Ref: workload("over"), Node: "a"})
	l.must(&command.EndWorkload{Ref: workload("over")})
	waiting := l.must(await("second", "b", "first", "over", "unknown")).(command.AwaitWorkloadResult)
	if len(waiting.Left) != 1 || waiting.Left[0] != workload("first") || waiting.Workload.Status != claim.Waiting {
		t.Fatalf("waits: %+v", waiting)
	}
	before := l.records()
	l.must(await("second", "b", "first", "over", "unknown"))
	for name, row := range map[string]struct {
		c    command.Command
		want error
	}{
		"elsewhere":       {await("second", "a", "first"), claim.ErrConflict},
		"start elsewhere": {&command.StartWorkload{Ref: workload("second"), Node: "a"}, claim.ErrConflict},
		"one that runs":   {await("first", "a", "second"), claim.ErrConflict},
		"for itself":      {await("third", "a", "third"), claim.ErrCycle},
		"for one twice":   {await("third", "a", "first", "first"), claim.ErrInvalid},
		"for a path":      {await("third", "a", "../x"), claim.ErrInvalid},
		"for too many": {&command.AwaitWorkload{
			Ref: workload("third"), Node: "a",
			After: make([]claim.WorkloadRef, command.MaxAfter+1),
		}, claim.ErrInvalid},
		"on no node":       {await("third", ""), claim.ErrInvalid},
		"token of waiting": {&command.PutToken{Token: intent(1, "second")}, claim.ErrNotRunning},
	} {
		l.refused(name, row.want, row.c)
	}
	l.sameAs(before, "repeated, or refused")

	l.must(await("second", "b", "first"))
	started := l.must(&command.StartWorkload{Ref: workload("second"), Node: "b"}).(command.StartWorkloadResult)
	if w := started.Workload; !started.Created || w.Status != claim.Running || w.CreateIndex != l.index ||
		len(w.After) != 1 {
		t.Errorf("started %+v", w)
	}
	l.must(await("third", "b", "second"))
	if got := l.must(&command.EndWorkload{Ref: workload(
		"third")}).(command.EndWorkloadResult); got.Workload.Status != claim.Ended || !got.Found {
		t.Errorf("ended %+v", got)
	}
	if again := l.must(await("third", "c",
		"second")).(command.AwaitWorkloadResult); again.Workload.CreateIndex != l.index {
		t.Errorf("waits again as %+v", again.Workload)
	}
}

func TestCycles(t *testing.T) {
	l := open(t)
	l.must(await("a", "n", "b"))
	l.must(await("b", "n", "c", "d"))
	l.must(await("d", "n", "e"))
	_, err := l.do(await("e", "n", "x", "a"))
	if !errors.Is(err, claim.ErrCycle) ||
		!strings.Contains(err.Error(), `workload "e" waits for workload "a" waits for workload "b" waits for workload "d" waits for workload "e"`) {
		t.Errorf("got %v", err)
	}
	secret := claim.WorkloadRef{Namespace: "secret", ID: "payroll"}
	l.must(await("p", "n", "q"))
	l.must(&command.AwaitWorkload{Ref: workload("q"), Node: "n", After: []claim.WorkloadRef{secret}})
	l.must(&command.AwaitWorkload{Ref: secret, Node: "n", After: []claim.WorkloadRef{workload("r")}})
	_, err = l.do(await("r", "n", "p"))
	if !errors.Is(err, claim.ErrCycle) || strings.Contains(err.Error(), "payroll") || strings.Contains(err.Error(), "secret") ||
		!strings.Contains(err.Error(), `workload "q" waits for a workload of another namespace waits for workload "r"`) {
		t.Errorf("over another namespace: %v", err)
	}
	// A running workload waits for nothing, whatever it waited for before.
	l.must(&command.StartWorkload{Ref: workload("d"), Node: "n"})
	l.must(await("e", "n", "a"))

	// Several paths to the same workload are not a cycle. They are not followed individually, which would
	// take too long.
	layer := []string{"end"}
	for i := range 12 {
		next := []string{}
		for k := range 8 {
			id := fmt.Sprintf("layer-%d-%d", i, k)
			l.must(await(id, "n", layer...))
			next = append(next, id)
		}
		layer = next
	}
	l.must(await("top", "n", layer...))
}

func TestLongChains(t *testing.T) {
	l := open(t)
	for i := range maxChain + 1 {
		l.must(await(fmt.Sprint("w", i), "n", fmt.Sprint("w", i+1)))
	}
	if _, err := l.do(await("last", "n", "w0")); !errors.Is(err, claim.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	l.must(await("short", "n", "w10"))
}

// TestEndARun: ending a run does not end a different run that the caller does not know.
func TestEndARun(t *testing.T) {
	l := open(t)
	first := l.must(&command.StartWorkload{Ref: workload("w"), Node: "a"}).(command.StartWorkloadResult).Workload
	l.must(&command.EndWorkload{Ref: workload("w"), Node: "a", Run: first.CreateIndex})
	second := l.must(&command.StartWorkload{Ref: workload("w"), Node: "b"}).(command.StartWorkloadResult).Workload
	before := l.records()
	for name, c := range map[string]*command.EndWorkload{
		"the run before": {Ref: workload("w"), Run: first.CreateIndex},
		"elsewhere":      {Ref: workload("w"), Node: "a"},
		"both":           {Ref: workload("w"), Node: "a", Run: second.CreateIndex},
	} {
		if got := l.must(c).(command.EndWorkloadResult); got.Found {
			t.Errorf("%s: ended %+v", name, got)
		}
	}
	l.sameAs(before, "another run")
	if got := l.must(&command.EndWorkload{
		Ref: workload("w"), Node: "b",
		Run: second.CreateIndex,
	}).(command.EndWorkloadResult); !got.Found || got.Workload.Status != claim.Ended {
		t.Errorf("ended %+v", got)
	}
}

// TestLateStart: delayed commands of a run that has ended have no effect.
func TestLateStart(t *testing.T) {
	l := open(t)
	l.must(&command.RegisterVolume{Volume: volume("v", claim.SingleNodeWriter)})
	start := func(node, run string) *command.StartWorkload {
		return &command.StartWorkload{
			Ref: workload("w"), Node: node, RunID: run,
			Claims: []claim.Claim{wanted("v", claim.SingleNodeWriter, claim.Write)},
		}
	}
	end := func(node, run string, index uint64) bool {
		t.Helper()
		return l.must(&command.EndWorkload{
			Ref: workload("w"), Node: node, Run: index,
			RunID: run,
		}).(command.EndWorkloadResult).Found
	}
	late := func(node, run string) {
		t.Helper()
		before := l.records()
		for _, c := range []command.Command{
			start(node, run),
			&command.AwaitWorkload{Ref: workload("w"), Node: node, RunID: run},
		} {
			if _, err := l.do(c); !errors.Is(err, claim.ErrConflict) {
				t.Errorf("%T of the run %s, which is over: %v", c, run, err)
			}
		}
		l.sameAs(before, "late")
	}
	free := func() {
		t.Helper()
		l.must(&command.AdvanceClaims{Items: []command.Advance{{Volume: ref("v"), Workload: workload("w"), To: claim.Freed}}})
	}

	if end("a", "one", 0) {
		t.Error("an unknown run was found")
	}
	late("a", "one")
	two := l.must(start("a", "two")).(command.StartWorkloadResult)
	late("a", "one")
	if !end("a", "two", two.Workload.CreateIndex) {
		t.Error("the second run is not found")
	}
	late("a", "two")
	free()
	late("a", "two")

	// Ending an abandoned run does not end a different run elsewhere.
	four := l.must(start("b", "four")).(command.StartWorkloadResult)
	if end("a", "three", 0) {
		t.Error("a run of another node was ended")
	}
	view(t, l, func(tx *ReadTx) error {
		w, err := tx.Workload(workload("w"))
		if w.Status != claim.Running || w.CreateIndex != four.Workload.CreateIndex {
			t.Errorf("the run of another node is now %+v", w)
		}
		return err
	})
	if !end("b", "four", 0) {
		t.Error("a run whose number is not known is not found by its node")
	}
	free()
	late("b", "four")
	l.must(start("a", "five"))
}

// TestEndsOfABoundNode: a node that ends runs of others, or of namespaces that it is not bound to, changes
// no workload.
func TestEndsOfABoundNode(t *testing.T) {
	l := open(t)
	for _, name := range []string{"a", "evil"} {
		l.must(&command.PutNode{Node: claim.Node{Name: name, BootID: "b"}})
	}
	l.must(&command.SetNodeDuty{Name: "evil", Namespaces: &[]string{"dev"}})
	l.must(&command.StartWorkload{Ref: workload("w"), Node: "a", RunID: "one"})
	known := func() (all []claim.Workload) {
		t.Helper()
		err := l.View(func(tx *ReadTx) (err error) {
			all, _, err = tx.Workloads("", Page{})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := known()
	for _, ref := range []claim.WorkloadRef{workload("w"), workload("x"), {Namespace: "prod", ID: "db"}} {
		for _, run := range []string{"", "one", "other"} {
			end := l.must(&command.EndWorkload{Ref: ref, Node: "evil", RunID: run}).(command.EndWorkloadResult)
			if end.Found {
				t.Errorf("run %q of %s was ended", run, ref)
			}
		}
	}
	if now := known(); !reflect.DeepEqual(now, before) {
		t.Errorf("the ledger has\n%+v, want\n%+v", now, before)
	}
	l.must(&command.EndWorkload{Ref: claim.WorkloadRef{Namespace: "dev", ID: "x"}, Node: "evil", RunID: "mine"})
	if now := known(); len(now) != len(before)+1 {
		t.Errorf("its own run is not there: %+v", now)
	}
}

// TestStartThatIsLateByTwo: a start takes nothing after its run was ended, however many runs came after it, and ending
// a run that never began keeps the one that runs on the same node.
func TestStartThatIsLateByTwo(t *testing.T) {
	l := open(t)
	l.must(&command.RegisterVolume{Volume: volume("v", claim.SingleNodeWriter)})
	start := func(run string) *command.StartWorkload {
		return &command.StartWorkload{
			Ref: workload("w"), Node: "a", RunID: run,
			Claims: []claim.Claim{wanted("v", claim.SingleNodeWriter, claim.Write)},
		}
	}
	end := func(run string) bool {
		t.Helper()
		return l.must(&command.EndWorkload{Ref: workload("w"), Node: "a", RunID: run}).(command.EndWorkloadResult).Found
	}
	free := func() {
		t.Helper()
		l.must(&command.AdvanceClaims{Items: []command.Advance{{Volume: ref("v"), Workload: workload("w"), To: claim.Freed}}})
	}
	end("refused")
	for _, run := range []string{"one", "two", "three"} {
		l.must(start(run))
		if end("refused") {
			t.Errorf("the run %s was ended in place of one that never began", run)
		}
		if !end(run) {
			t.Errorf("the run %s was not ended", run)
		}
		free()
	}
	before := l.records()
	for _, run := range []string{"refused", "one", "two", "three"} {
		for _, c := range []command.Command{
			start(run), &command.AwaitWorkload{Ref: workload("w"), Node: "a", RunID: run},
		} {
			if _, err := l.do(c); !errors.Is(err, claim.ErrConflict) {
				t.Errorf("%T of the run %s, which is over: %v", c, run, err)
			}
		}
	}
	l.sameAs(before, "late")

	// Ends are forgotten in the end, on a host without keyed commands too.
	l.index += uint64(keptFor.Seconds()) // and as many seconds
	for i := range 20 {
		end(fmt.Sprint("later-", i))
	}
	for key := range l.records() {
		if strings.HasPrefix(key, keptKey(endedRun("one"))) {
			t.Error("the end of a run is kept for ever")
		}
	}
}
