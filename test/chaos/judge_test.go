package chaos

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestHistories sees which histories are taken for those of a ledger, and which are not.
func TestHistories(t *testing.T) {
	const one, node = "single-node-writer", "n1"
	first, second := start{one, "w1", node, true}, start{one, "w2", "n2", true}
	taken := func(s start, leaving bool) shown {
		return shown{claims: []held{{workload: s.workload, node: s.node, write: s.write, leaving: leaving}}}
	}
	op := func(call, ret int64, input, output any) porcupine.Operation {
		return porcupine.Operation{Input: input, Output: output, Call: call, Return: ret}
	}
	for name, c := range map[string]struct {
		legal bool
		ops   []porcupine.Operation
	}{
		"one after the other": {true, []porcupine.Operation{
			op(0, 1, first, done), op(2, 5, release{"w1"}, done), op(2, 5, gone{"w1"}, done), op(3, 4, read{}, taken(first, true)), op(6, 7, second, done),
		}},
		"two at once":                             {false, []porcupine.Operation{op(0, 1, first, done), op(2, 3, second, done)}},
		"the second while the first leaves":       {true, []porcupine.Operation{op(0, 1, first, done), op(2, 9, release{"w1"}, done), op(3, 4, second, done)}},
		"refused, and nobody has it":              {false, []porcupine.Operation{op(0, 1, first, refused)}},
		"refused while the first may be there":    {true, []porcupine.Operation{op(0, 9, first, unknown), op(1, 2, second, refused)}},
		"a claim is lost":                         {false, []porcupine.Operation{op(0, 1, first, done), op(2, 3, read{}, shown{})}},
		"a claim that its node lost":              {true, []porcupine.Operation{op(0, 1, first, done), op(0, 9, release{"w1"}, unknown), op(2, 3, read{}, shown{})}},
		"an old answer":                           {false, []porcupine.Operation{op(0, 1, first, done), op(2, 3, read{}, taken(first, false)), op(4, 5, release{"w1"}, done), op(6, 7, read{}, taken(first, false))}},
		"it comes back":                           {false, []porcupine.Operation{op(0, 1, first, done), op(2, 5, release{"w1"}, done), op(6, 7, read{}, shown{}), op(8, 9, read{}, taken(first, true))}},
		"there after its end":                     {false, []porcupine.Operation{op(0, 1, first, done), op(2, 5, release{"w1"}, done), op(2, 5, gone{"w1"}, done), op(6, 7, read{}, taken(first, true))}},
		"a claim that nobody asked for":           {false, []porcupine.Operation{op(0, 1, read{}, taken(first, false))}},
		"taken out while it is held":              {false, []porcupine.Operation{op(0, 1, first, done), op(2, 3, deregister{}, done)}},
		"claimed after it was taken out":          {false, []porcupine.Operation{op(0, 1, deregister{}, done), op(2, 3, first, done)}},
		"taken out and registered again":          {true, []porcupine.Operation{op(0, 1, deregister{}, done), op(2, 3, first, absent), op(4, 5, register{}, done), op(6, 7, first, done)}},
		"not there, and never taken out":          {false, []porcupine.Operation{op(0, 1, read{}, shown{absent: true})}},
		"taken out twice, once without an answer": {true, []porcupine.Operation{op(0, 1, deregister{}, absent), op(2, 3, read{}, shown{absent: true})}},
		"two readers of many": {true, []porcupine.Operation{
			op(0, 1, start{"multi-node-single-writer", "w1", node, true}, done), op(2, 3, start{"multi-node-single-writer", "w2", "n2", false}, done),
		}},
		"two writers of many": {false, []porcupine.Operation{
			op(0, 1, start{"multi-node-single-writer", "w1", node, true}, done), op(2, 3, start{"multi-node-single-writer", "w2", "n2", true}, done),
		}},
		"two on one node": {true, []porcupine.Operation{
			op(0, 1, start{"single-node-multi-writer", "w1", node, true}, done), op(2, 3, start{"single-node-multi-writer", "w2", node, true}, done),
		}},
		"two on two nodes": {false, []porcupine.Operation{
			op(0, 1, start{"single-node-multi-writer", "w1", node, true}, done), op(2, 3, start{"single-node-multi-writer", "w2", "n2", true}, done),
		}},
	} {
		if legal := porcupine.CheckOperations(ledger.ToModel(), c.ops); legal != c.legal {
			t.Errorf("%s: linearizable is %v, want %v", name, legal, c.legal)
		}
	}
}

// TestPublications sees until when a volume counts as published, and on how many nodes.
func TestPublications(t *testing.T) {
	const volume = "v"
	publish := func(at int64, node, what string) did { return did{at, node, what, volume, "/" + node} }
	for name, c := range map[string]struct {
		done   []did
		fences []fenced
		twice  int
	}{
		"one after the other":    {[]did{publish(1, "a", "publish"), publish(2, "a", "unpublish"), publish(3, "b", "publish")}, nil, 0},
		"both at once":           {[]did{publish(1, "a", "publish"), publish(3, "b", "publish")}, nil, 1},
		"too late":               {[]did{publish(1, "a", "publish"), publish(2, "b", "publish"), publish(3, "a", "unpublish")}, nil, 1},
		"the fence was there":    {[]did{publish(1, "a", "publish"), publish(3, "b", "publish"), publish(4, "a", "unpublish")}, []fenced{{2, []string{"/a"}}}, 0},
		"the fence came late":    {[]did{publish(1, "a", "publish"), publish(2, "b", "publish"), publish(4, "a", "unpublish")}, []fenced{{3, []string{"/a"}}}, 1},
		"the fence is not done":  {[]did{publish(1, "a", "publish"), publish(2, "b", "publish")}, []fenced{{0, []string{"/a"}}}, 1},
		"it unmounted another":   {[]did{publish(1, "a", "publish"), publish(3, "b", "publish")}, []fenced{{2, []string{"/c"}}}, 1},
		"a fence of before":      {[]did{publish(2, "a", "publish"), publish(3, "b", "publish")}, []fenced{{1, []string{"/a"}}}, 1},
		"twice on the same node": {[]did{publish(1, "a", "publish"), publish(2, "a", "publish")}, nil, 0},
	} {
		if wrong := twice(publications(c.done, c.fences), volume); len(wrong) != c.twice {
			t.Errorf("%s: %q, want %d of them", name, wrong, c.twice)
		}
	}
}

// TestWritten sees who is taken for a second writer.
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
		if wrong := after(all, []publication{{node: "b", volume: "v", from: at}, {node: "a", volume: "v", from: 2}}, "v"); len(wrong) != n {
			t.Errorf("another node published at %d: %q, want %d of them", at, wrong, n)
		}
	}
}

// TestPlans sees that a seed decides what goes wrong, and that all of it may.
func TestPlans(t *testing.T) {
	var all strings.Builder
	for seed := range uint64(40) {
		steps := plan(seed, lasts)
		if !reflect.DeepEqual(steps, plan(seed, lasts)) {
			t.Errorf("seed %d has two plans", seed)
		}
		for _, s := range steps {
			all.WriteString(s.String())
		}
	}
	for _, name := range append(append([]string{"a server is added", "it is removed"}, network...), hosts...) {
		if !strings.Contains(all.String(), name) {
			t.Errorf("%s: in no plan", name)
		}
	}
}
