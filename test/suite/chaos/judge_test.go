package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/pannier/pannier/test/lib/testhost"
)

// TestHistories checks which histories the model accepts and which it rejects.
func TestHistories(t *testing.T) {
	const one, node = "single-node-writer", "n1"
	first, second := start{one, "w1", node, true}, start{one, "w2", "n2", true}
	reader, other := start{"multi-node-reader-only", "r1", node, false}, start{"multi-node-reader-only", "r2", node, false}
	taken := func(s start) shown { return shown{claims: []held{{s.workload, s.node, s.write, false}}} }
	leaving := func(s start) shown { return shown{claims: []held{{s.workload, s.node, s.write, true}}} }
	op := func(call, ret int64, what, output any) porcupine.Operation {
		return porcupine.Operation{Input: asked{what, call, ret}, Output: output, Call: call, Return: ret}
	}
	type ops = []porcupine.Operation
	for name, c := range map[string]struct {
		legal bool
		ops   ops
		lives []life
		outs  []int64
		ins   []int64
	}{
		"one after the other": {true, ops{
			op(0, 1, first, done), op(3, 4, read{}, leaving(first)), op(6, 7, second, done),
		}, []life{{first, false, 0, 2, 5}}, nil, nil},
		"two at once": {false, ops{op(0, 1, first, done), op(2, 3, second, done)}, nil, nil, nil},
		"the second while the first leaves": {
			true,
			ops{op(0, 1, first, done), op(3, 4, second, done)},
			[]life{{first, false, 0, 2, 9}},
			nil, nil,
		},
		"the second before the first may leave": {
			false,
			ops{op(0, 1, first, done), op(2, 3, second, done)},
			[]life{{first, false, 0, 4, 9}},
			nil, nil,
		},
		"the second saw the first leave, a third did so before": {false, ops{
			op(0, 1, first, done), op(2, 9, second, done), op(3, 4, read{}, taken(second)),
		}, []life{{first, false, 0, 5, 9}}, nil, nil},
		"refused, and nobody has it": {false, ops{op(0, 1, first, refused)}, nil, nil, nil},
		"refused while the first may be there": {
			true,
			ops{op(1, 2, second, refused)},
			[]life{{first, true, 0, 0, 9}},
			nil,
			nil,
		},
		"refused before the first": {
			false,
			ops{op(1, 2, second, refused)},
			[]life{{first, true, 3, 3, 9}},
			nil,
			nil,
		},
		"refused after the first's end": {
			false,
			ops{op(6, 7, second, refused)},
			[]life{{first, true, 0, 0, 5}},
			nil,
			nil,
		},
		"refused twice, and not in between": {false, ops{
			op(1, 2, second, refused), op(3, 4, read{}, shown{}), op(5, 6, second, refused),
		}, []life{{first, true, 0, 0, 9}}, nil, nil},
		"the one that refused is nobody's, the other is": {true, ops{
			op(1, 2, deregister{}, refused), op(3, 4, read{}, shown{}), op(5, 6, deregister{}, refused),
		}, []life{{reader, true, 0, 0, 9}, {other, true, 0, 0, 9}}, nil, nil},
		"a start that was never answered is seen": {
			true,
			ops{op(1, 2, read{}, shown{}), op(3, 4, read{}, taken(first))},
			[]life{{first, true, 0, 0, 9}},
			nil, nil,
		},
		"it is seen, gone, and seen again": {
			false,
			ops{
				op(1, 2, read{}, taken(first)), op(3, 4, read{}, shown{}),
				op(5, 6, read{}, taken(first)),
			},
			[]life{{first, true, 0, 0, 9}},
			nil, nil,
		},
		"it is seen after its end": {
			false,
			ops{op(6, 7, read{}, taken(first))},
			[]life{{first, true, 0, 0, 5}},
			nil, nil,
		},
		"it is seen beside what excludes it": {
			false,
			ops{op(0, 1, second, done), op(2, 3, read{},
				shown{claims: []held{
					{"w1", node, true, false},
					{"w2", "n2", true, false},
				}})},
			[]life{{first, true, 0, 0, 9}},
			nil, nil,
		},
		"a claim is lost": {
			false,
			ops{op(0, 1, first, done), op(2, 3, read{}, shown{})},
			nil, nil,
			nil,
		},
		"a claim that its node lost": {
			true,
			ops{op(0, 1, first, done), op(2, 3, read{}, shown{})},
			[]life{{first, false, 0, 0, 9}},
			nil, nil,
		},
		"an old answer": {
			false,
			ops{
				op(0, 1, first, done), op(2, 3, read{}, taken(first)),
				op(6, 7, read{}, taken(first)),
			},
			[]life{{first, false, 0, 4, 5}},
			nil, nil,
		},
		"an old answer while it leaves": {
			false,
			ops{
				op(0, 1, first, done), op(5, 6, read{}, leaving(first)),
				op(7, 8, read{}, taken(first)),
			},
			[]life{{first, false, 0, 4, 9}},
			nil, nil,
		},
		"it comes back": {
			false,
			ops{
				op(0, 1, first, done), op(6, 7, read{}, shown{}),
				op(8, 9, read{}, leaving(first)),
			},
			[]life{{first, false, 0, 2, 9}},
			nil, nil,
		},
		"there after its end": {
			false,
			ops{op(0, 1, first, done), op(6, 7, read{}, leaving(first))},
			[]life{{first, false, 0, 2, 5}},
			nil, nil,
		},
		"a claim that nobody asked for": {false, ops{op(0, 1, read{}, taken(first))}, nil, nil, nil},
		"a claim on another node": {
			false,
			ops{op(0, 1, first, done), op(2, 3, read{}, shown{claims: []held{{"w1", "n2", true, false}}})},
			nil, nil, nil,
		},
		"taken out while it is held": {
			false,
			ops{op(0, 1, first, done), op(2, 3, deregister{}, done)},
			nil, nil,
			nil,
		},
		"claimed after it was taken out": {
			false,
			ops{op(0, 1, deregister{}, done), op(2, 3, first, done)},
			nil, nil,
			nil,
		},
		"taken out and registered again": {
			true,
			ops{
				op(0, 1, deregister{}, done), op(2, 3, first, absent), op(4, 5, register{}, done),
				op(6, 7, first, done),
			},
			nil, nil, nil,
		},
		"registered again without an answer": {
			true,
			ops{op(0, 1, deregister{}, done), op(3, 4, first, done)},
			nil, nil,
			[]int64{2},
		},
		"twice there again, and registered once": {false, ops{
			op(0, 1, deregister{}, done), op(4, 5, read{}, shown{}), op(6, 7, deregister{}, done), op(8, 9, read{}, shown{}),
		}, nil, nil, []int64{2}},
		"registered again before it was taken out": {
			true,
			ops{
				op(0, 3, deregister{}, done), op(1, 2, first, done),
				op(4, 5, first, absent),
			},
			[]life{{first, false, 1, 1, 3}},
			nil, nil,
		},
		"not there, and never taken out": {false, ops{op(0, 1, read{}, shown{absent: true})}, nil, nil, nil},
		"not there, taken out without an answer": {
			true,
			ops{op(2, 3, read{}, shown{}), op(4, 5, read{}, shown{absent: true})},
			nil,
			[]int64{0},
			nil,
		},
		"not there before it was taken out": {false, ops{op(0, 1, read{}, shown{absent: true})}, nil, []int64{2}, nil},
		"twice not there, and taken out once": {
			false,
			ops{
				op(2, 3, read{}, shown{absent: true}), op(4, 5, register{}, done),
				op(6, 7, read{}, shown{absent: true}),
			},
			nil,
			[]int64{0},
			nil,
		},
		"not there while it is held": {
			false,
			ops{op(0, 1, first, done), op(4, 5, read{}, shown{absent: true})},
			[]life{{first, false, 0, 6, 9}},
			[]int64{2},
			nil,
		},
		"taken out twice, once without an answer": {
			true,
			ops{
				op(1, 2, deregister{}, absent), op(3, 4, read{}, shown{absent: true}),
			},
			nil,
			[]int64{0},
			nil,
		},
		"not there to be taken out, and never taken out": {false, ops{op(0, 1, deregister{}, absent)}, nil, nil, nil},
		"taken out twice": {false, ops{op(0, 1, deregister{}, done), op(2, 3, deregister{}, done)}, nil, nil, nil},
		"taken out, and it was not there": {
			true,
			ops{op(0, 1, deregister{}, done), op(2, 3, deregister{}, absent)},
			nil, nil, nil,
		},
		"two readers of many": {
			true,
			ops{
				op(0, 1, start{"multi-node-single-writer", "w1", node, true}, done),
				op(2, 3, start{"multi-node-single-writer", "w2", "n2", false}, done),
			},
			nil, nil, nil,
		},
		"two writers of many": {
			false,
			ops{
				op(0, 1, start{"multi-node-single-writer", "w1", node, true}, done),
				op(2, 3, start{"multi-node-single-writer", "w2", "n2", true}, done),
			},
			nil, nil, nil,
		},
		"two on one node": {
			true,
			ops{
				op(0, 1, start{"single-node-multi-writer", "w1", node, true}, done),
				op(2, 3, start{"single-node-multi-writer", "w2", node, true}, done),
			},
			nil, nil, nil,
		},
		"two on two nodes": {
			false,
			ops{
				op(0, 1, start{"single-node-multi-writer", "w1", node, true}, done),
				op(2, 3, start{"single-node-multi-writer", "w2", "n2", true}, done),
			},
			nil, nil, nil,
		},
	} {
		h := &history{ops: c.ops, lives: map[string]life{}, ins: c.ins, outs: c.outs}
		for _, l := range c.lives {
			h.lives[l.workload] = l
		}
		if legal := porcupine.CheckOperations(h.ledger(), h.ops); legal != c.legal {
			t.Errorf("%s: linearizable is %v, want %v\n%s", name, legal, c.legal, h)
		}
	}
}

// TestMuch checks that a long history with many unobserved events is judged quickly. As many
// operations are in flight as there are clients.
func TestMuch(t *testing.T) {
	const much = 60
	chance := rand.New(rand.NewPCG(1, 1))
	h := &history{lives: map[string]life{}, ins: []int64{1, 2, 3}, outs: []int64{1, 2, 3}}
	add := func(call, ret int64, what, output any) {
		h.ops = append(h.ops, porcupine.Operation{Input: asked{what, call, ret}, Output: output, Call: call, Return: ret})
	}
	for n := range int64(much) {
		s := start{"single-node-multi-writer", fmt.Sprintf("w%02d", n), pick(chance, []string{"a", "b"}), true}
		h.lives[s.workload] = life{s, n%4 > 0, n, n, 4 * much}
		switch n % 4 {
		case 0:
			add(n, n+users, s, done)
		case 1:
			add(n, n+users, deregister{}, refused)
		case 2:
			add(n, n+users, start{s.access, fmt.Sprintf("x%02d", n), "c", false}, refused)
		}
		add(3*much+n, 3*much+n+users, read{}, shown{})
	}
	judge := func(want porcupine.CheckResult) {
		t.Helper()
		if result := porcupine.CheckOperationsTimeout(h.ledger(), h.ops, testhost.Wait); result != want {
			t.Errorf("linearizable: %s, want %s\n%s", result, want, h)
		}
	}
	judge(porcupine.Ok)
	add(5*much, 6*much, deregister{}, refused)
	judge(porcupine.Illegal)
}

// TestPublications checks when a volume counts as published, and on how many nodes.
func TestPublications(t *testing.T) {
	const volume = "v"
	publish := func(at int64, node, what string) did { return did{at, node, what, volume, "/" + node} }
	for name, c := range map[string]struct {
		done   []did
		fences []fenced
		twice  int
	}{
		"one after the other": {[]did{
			publish(1, "a", "publish"), publish(2, "a", "unpublish"),
			publish(3, "b", "publish"),
		}, nil, 0},
		"both at once": {[]did{publish(1, "a", "publish"), publish(3, "b", "publish")}, nil, 1},
		"too late": {[]did{
			publish(1, "a", "publish"), publish(2, "b", "publish"),
			publish(3, "a", "unpublish"),
		}, nil, 1},
		"the fence was there": {[]did{
			publish(1, "a", "publish"), publish(3, "b", "publish"),
			publish(4, "a", "unpublish"),
		}, []fenced{{2, []string{"/a"}}}, 0},
		"the fence came late": {[]did{
			publish(1, "a", "publish"), publish(2, "b", "publish"),
			publish(4, "a", "unpublish"),
		}, []fenced{{3, []string{"/a"}}}, 1},
		"the fence is not done": {
			[]did{publish(1, "a", "publish"), publish(2, "b", "publish")},
			[]fenced{{0, []string{"/a"}}},
			1,
		},
		"it unmounted another": {
			[]did{publish(1, "a", "publish"), publish(3, "b", "publish")},
			[]fenced{{2, []string{"/c"}}},
			1,
		},
		"a fence of before": {
			[]did{publish(2, "a", "publish"), publish(3, "b", "publish")},
			[]fenced{{1, []string{"/a"}}},
			1,
		},
		"twice on the same node": {[]did{publish(1, "a", "publish"), publish(2, "a", "publish")}, nil, 0},
	} {
		if wrong := twice(publications(c.done, c.fences, nil), volume); len(wrong) != c.twice {
			t.Errorf("%s: %q, want %d of them", name, wrong, c.twice)
		}
	}
}

// TestWritten checks which workloads are reported as a second writer.
func TestWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), written)
	for name, c := range map[string]struct {
		lines, access string
		mixed         int
	}{
		"one after the other": {"1 a w1\n2 a w1\n3 b w2\n4 b w2\n", "single-node-writer", 0},
		"one line too late":   {"1 a w1\n3 b w2\n2 a w1\n4 b w2\n", "single-node-writer", 1},
		"two of many":         {"1 a w1\n3 b w2\n2 a w1\n4 b w2\n", "multi-node-single-writer", 1},
		"two on one node":     {"1 a w1\n2 a w2\n3 a w1\n4 a w2\n", "single-node-multi-writer", 0},
		"two on two nodes":    {"1 a w1\n2 b w2\n3 a w1\n4 b w2\n", "single-node-multi-writer", 1},
	} {
		if err := os.WriteFile(path, []byte(c.lines), 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := readWritten(path)
		if err != nil {
			t.Fatal(err)
		}
		if wrong := mixed(all, c.access); len(wrong) != c.mixed {
			t.Errorf("%s: %q, want %d of them", name, wrong, c.mixed)
		}
	}
	all := []wrote{{node: "a", workload: "w1", from: 1, to: 5}}
	for at, n := range map[int64]int{4: 1, 6: 0} {
		if wrong := after(all, []publication{{node: "b", volume: "v", from: at}, {node: "a", volume: "v", from: 2}},
			"v"); len(wrong) != n {
			t.Errorf("another node published at %d: %q, want %d of them", at, wrong, n)
		}
	}
}

// TestDisorder checks which fencing tokens are reported as out of order.
func TestDisorder(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	runs := []run{
		{id: "first", out: done, started: at(1), answered: at(3)},
		{id: "beside", out: done, started: at(2), answered: at(4)},
		{id: "unanswered", out: unknown, started: at(1), answered: at(2)},
		{id: "last", out: done, started: at(5), answered: at(6)},
	}
	for name, c := range map[string]struct {
		tokens map[string]uint64
		wrong  int
	}{
		"in order":                     {map[string]uint64{"first": 1, "beside": 2, "last": 3}, 0},
		"two at once":                  {map[string]uint64{"first": 2, "beside": 1, "last": 3}, 0},
		"not all were seen":            {map[string]uint64{"beside": 1, "last": 3}, 0},
		"one that came without saying": {map[string]uint64{"unanswered": 9, "last": 3}, 0},
		"the last before the others":   {map[string]uint64{"first": 2, "beside": 3, "last": 1}, 2},
		"two the same":                 {map[string]uint64{"first": 1, "last": 1}, 1},
	} {
		if wrong := disorder(runs, c.tokens); len(wrong) != c.wrong {
			t.Errorf("%s: %q, want %d of them", name, wrong, c.wrong)
		}
	}
}

// TestPlans checks that a seed determines its plan, and that each fault occurs in some plan.
func TestPlans(t *testing.T) {
	var all strings.Builder
	for seed := range uint64(40) {
		steps := plan(seed, lasts, 5*time.Second)
		if !reflect.DeepEqual(steps, plan(seed, lasts, 5*time.Second)) {
			t.Errorf("seed %d has two plans", seed)
		}
		for _, s := range steps {
			all.WriteString(s.String())
		}
	}
	for _, name := range slices.Concat([]string{"a server is added", "it is removed"}, network, hosts, alone) {
		if !strings.Contains(all.String(), name) {
			t.Errorf("%s: in no plan", name)
		}
	}
}
