package chaos

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/pannier/pannier/test/lib/testhost"
)

// plain is a second, brute-force implementation of the ledger's model: it tries every unobserved
// event in every order. That is too slow for more than a few operations.
func (h *history) plain() bool {
	w := world{registered: true, claims: map[string]held{}, left: map[*event]bool{}}
	add := func(e event) { w.left[&e] = true }
	for _, o := range h.ops {
		in, _ := o.Input.(asked)
		add(event{what: in.what, output: o.Output, call: in.call, ret: in.ret})
	}
	for _, l := range h.lives {
		if l.unanswered {
			add(event{what: l.start, output: done, call: l.started, ret: l.over, maybe: true})
		}
		add(event{what: leave{l.workload}, call: l.mayGo, ret: l.over, maybe: l.unanswered})
		add(event{what: free{l.workload}, call: l.mayGo, ret: l.over, maybe: l.unanswered})
	}
	for _, call := range h.ins {
		add(event{what: register{}, output: done, call: call, ret: ever, maybe: true})
	}
	for _, call := range h.outs {
		add(event{what: deregister{}, output: done, call: call, ret: ever, maybe: true})
	}
	return w.goesOn()
}

const ever = int64(1) << 62

type (
	leave struct{ workload string }
	free  struct{ workload string }
)

// event happens at one moment; a maybe event may also not happen.
type event struct {
	what, output any
	call, ret    int64
	maybe        bool
}

// world is the state of a volume and the events still to come.
type world struct {
	registered bool
	claims     map[string]held
	left       map[*event]bool
	now        int64
}

// goesOn tries each event as the next one.
func (w world) goesOn() bool {
	over := true
	for e := range w.left {
		if w.must(e) {
			over = false
		}
		if e.ret < w.now {
			continue
		}
		n := world{w.registered, maps.Clone(w.claims), maps.Clone(w.left), max(w.now, e.call)}
		delete(n.left, e)
		if n.happens(e) && n.inTime() && n.goesOn() {
			return true
		}
	}
	return over
}

// inTime reports whether all events that must happen still can.
func (w world) inTime() bool {
	for e := range w.left {
		if w.must(e) && e.ret < w.now {
			return false
		}
	}
	return true
}

// must reports whether an event has to happen.
func (w world) must(e *event) bool {
	f, frees := e.what.(free)
	_, there := w.claims[f.workload]
	return !e.maybe || frees && there
}

// happens applies an event to the world, if the rules allow it.
func (w *world) happens(e *event) bool {
	switch in := e.what.(type) {
	case start:
		excluded := slices.ContainsFunc(slices.Collect(maps.Values(w.claims)), excluding(in))
		switch e.output {
		case any(absent):
			return !w.registered
		case any(refused):
			return w.registered && excluded
		}
		if !w.registered || excluded {
			return false
		}
		w.claims[in.workload] = held{in.workload, in.node, in.write, false}
	case leave:
		c, there := w.claims[in.workload]
		c.leaving = true
		w.claims[in.workload] = c
		return there
	case free:
		there := w.claims[in.workload].leaving
		delete(w.claims, in.workload)
		return there
	case read:
		answer, _ := e.output.(shown)
		if answer.absent || !w.registered {
			return answer.absent && !w.registered
		}
		have := slices.SortedFunc(maps.Values(w.claims), byWorkload)
		return slices.Equal(have, slices.SortedFunc(slices.Values(answer.claims), byWorkload))
	case register:
		w.registered = true
	case deregister:
		switch e.output {
		case any(refused):
			return w.registered && len(w.claims) > 0
		case any(absent):
			return !w.registered
		}
		there := w.registered
		w.registered = false
		return there && len(w.claims) == 0
	}
	return true
}

// TestModel checks that the model and the brute-force search accept the same histories.
func TestModel(t *testing.T) {
	const histories = 6000
	legal := 0
	for n := range uint64(histories) {
		h := randomHistory(rand.New(rand.NewPCG(n, 1)))
		want := h.plain()
		if got := porcupine.CheckOperations(h.ledger(), h.ops); got != want {
			t.Fatalf("history %d: linearizable is %v, want %v\n%s", n, got, want, h)
		}
		if want {
			legal++
		}
	}
	t.Logf("%d of %d histories are linearizable", legal, histories)
	if legal < histories/5 || legal > histories*4/5 {
		t.Errorf("%d of %d histories are linearizable: most of the other kind are missing", legal, histories)
	}
}

// recorder builds a history.
type recorder struct {
	*history
	world
	chance *rand.Rand
	late   int64 // slack between an event and its request before it, or its answer after it
}

// randomHistory is a possible history with up to three workloads. Most of them contain one false
// answer.
func randomHistory(chance *rand.Rand) *history {
	r := recorder{
		&history{lives: map[string]life{}},
		world{registered: true, claims: map[string]held{}},
		chance,
		pick(chance, []int64{3, 12, 30}),
	}
	access := pick(chance, modes)
	for n := range int64(3 + chance.IntN(4)) {
		at := 10 * (n + 1)
		switch chance.IntN(6) {
		case 0, 1:
			if len(r.lives) < 3 {
				r.start(at, start{access, fmt.Sprintf("w%d", n), pick(chance, []string{"a", "b"}), chance.IntN(2) == 0})
			}
		case 2, 3:
			r.answer(at, read{}, r.shows())
		case 4:
			switch {
			case r.happens(&event{what: deregister{}, output: refused}):
				r.answer(at, deregister{}, refused)
			case !r.registered:
				r.answer(at, deregister{}, absent)
			default:
				r.change(at, deregister{}, &r.outs)
			}
		default:
			r.change(at, register{}, &r.ins)
		}
		r.leave(at)
	}
	if len(r.ops) > 0 && chance.IntN(4) > 0 {
		r.lie()
	}
	slices.Sort(r.ins)
	slices.Sort(r.outs)
	return r.history
}

func (r *recorder) before(at int64) int64 { return max(at-r.chance.Int64N(r.late), 0) }

func (r *recorder) answer(at int64, what, output any) {
	in := asked{what, r.before(at), at + r.chance.Int64N(r.late)}
	r.ops = append(r.ops, porcupine.Operation{Input: in, Output: output, Call: in.call, Return: in.ret})
}

// start starts a workload, if the rules allow it.
func (r *recorder) start(at int64, s start) {
	for _, out := range []outcome{refused, absent} {
		if r.happens(&event{what: s, output: out}) {
			r.answer(at, s, out)
			return
		}
	}
	r.happens(&event{what: s, output: done})
	l := life{start: s, unanswered: r.chance.IntN(2) == 0, started: r.before(at)}
	l.mayGo = l.started + r.chance.Int64N(40)
	l.over = max(at+r.late, l.mayGo) + r.chance.Int64N(40)
	r.lives[s.workload] = l
	if !l.unanswered {
		r.answer(at, s, done)
	}
}

// change registers or deregisters, with or without an answer.
func (r *recorder) change(at int64, what any, unanswered *[]int64) {
	r.happens(&event{what: what, output: done})
	if r.chance.IntN(2) == 0 {
		*unanswered = append(*unanswered, r.before(at))
		return
	}
	r.answer(at, what, done)
}

// leave moves claims on whose time has come: to leaving, or gone.
func (r *recorder) leave(at int64) {
	for _, l := range r.lives {
		_, there := r.claims[l.workload]
		switch {
		case l.over < at+10:
			delete(r.claims, l.workload)
		case there && l.mayGo < at && r.chance.IntN(2) == 0:
			r.happens(&event{what: leave{l.workload}})
			if r.chance.IntN(3) == 0 {
				r.happens(&event{what: free{l.workload}})
			}
		}
	}
}

// shows is the answer to a read.
func (w world) shows() shown {
	if !w.registered {
		return shown{absent: true}
	}
	return shown{claims: slices.SortedFunc(maps.Values(w.claims), byWorkload)}
}

// lie falsifies the answer of one operation.
func (r *recorder) lie() {
	o := &r.ops[r.chance.IntN(len(r.ops))]
	switch in, _ := o.Input.(asked); what := in.what.(type) {
	case start:
		if o.Output = pick(r.chance, []outcome{done, refused, absent}); o.Output != any(done) {
			delete(r.lives, what.workload)
		}
	case deregister:
		o.Output = pick(r.chance, []outcome{done, refused, absent})
	case read:
		answer, _ := o.Output.(shown)
		o.Output = shown{claims: r.others(answer.claims)}
	}
}

// others returns the claims with some added, some removed and some in another state.
func (r *recorder) others(claims []held) []held {
	claims = slices.Clone(claims)
	for _, l := range r.lives {
		n := slices.IndexFunc(claims, func(c held) bool { return c.workload == l.workload })
		switch what := r.chance.IntN(4); {
		case what < 2:
		case n < 0:
			claims = append(claims, held{l.workload, l.node, l.write, r.chance.IntN(2) == 0})
		case what == 2:
			claims = slices.Delete(claims, n, n+1)
		default:
			claims[n].leaving = !claims[n].leaving
		}
	}
	return claims
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
