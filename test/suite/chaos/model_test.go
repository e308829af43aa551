package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// asked is one operation of a history: a client's request on a volume, and when it was made.
type asked struct {
	what      any // a start, read, register or deregister
	call, ret int64
}

type (
	// start claims the volume for a workload.
	start struct {
		access, workload, node string
		write                  bool
	}
	// read reads the volume with its claims; its outcome is a shown.
	read       struct{}
	register   struct{}
	deregister struct{}
)

// outcome of an operation.
type outcome string

const (
	done    outcome = "done"
	refused outcome = "refused" // because of standing claims
	absent  outcome = "absent"  // the volume is not registered
	unknown outcome = "unknown" // done once during the operation, or never
)

// shown is the answer to a read.
type shown struct {
	absent bool
	claims []held
}

// on is the node that has a workload's claim.
func (s shown) on(workload string) string {
	return s.claims[slices.IndexFunc(s.claims, func(h held) bool { return h.workload == workload })].node
}

// held is one claim. A leaving claim may be gone already: no operation reports when that happens.
type held struct {
	workload, node string
	write          bool
	leaving        bool
}

func (h held) String() string {
	text := h.workload + " on " + h.node
	if h.write {
		text += " writes"
	}
	if h.leaving {
		text += ", leaving"
	}
	return text
}

// life bounds the unobserved transitions of a workload's claim: it begins to leave at mayGo or
// later, may be gone as soon as it leaves, and is gone at over. An unanswered start takes effect
// before over, or never.
type life struct {
	start
	unanswered  bool
	started     int64
	mayGo, over int64 // when it may begin to leave, and when it is gone
}

// volume is the model's state. An unobserved transition is applied only when an answer shows it: so
// there is one state for each order of answers, not one for each order of everything that may have
// happened between them.
type volume struct {
	registered bool
	claims     []held   // sorted by workload
	done       []string // workloads of unanswered starts that took effect, sorted, while it matters
	ins, outs  int      // how many unanswered registers and deregisters took effect
	now        int64    // the latest call so far
}

func (v volume) equal(o volume) bool {
	return v.registered == o.registered && slices.Equal(v.claims, o.claims) && slices.Equal(v.done, o.done) &&
		v.ins == o.ins && v.outs == o.outs && v.now == o.now
}

func (v volume) String() string {
	if !v.registered {
		return "not registered"
	}
	return fmt.Sprint(v.claims)
}

func (v volume) find(workload string) int {
	return slices.IndexFunc(v.claims, func(h held) bool { return h.workload == workload })
}

// with returns the volume with another claim.
func (v volume) with(s start) volume {
	v.claims = append(slices.Clone(v.claims), held{workload: s.workload, node: s.node, write: s.write})
	slices.SortFunc(v.claims, byWorkload)
	return v
}

func byWorkload(a, b held) int { return cmp.Compare(a.workload, b.workload) }

// excludes reports whether a claim prevents another workload's claim (docs/volume-spec.md, access
// modes).
func excludes(access string, have held, wanted start) bool {
	switch access {
	case "single-node-writer":
		return true
	case "multi-node-single-writer":
		return have.write && wanted.write
	case "single-node-multi-writer":
		return have.node != wanted.node
	default: // multi-node-reader-only
		return false
	}
}

func excluding(s start) func(held) bool {
	return func(h held) bool { return h.workload != s.workload && excludes(s.access, h, s) }
}

// history is the history of one volume.
type history struct {
	ops   []porcupine.Operation // answered operations, each an asked
	lives map[string]life       // by workload
	// ins and outs are the call times of unanswered registers and deregisters, sorted: each took
	// effect once after its call, or never.
	ins, outs []int64
	// forced are the nodes whose claims an operator released by force: an unanswered start there may claim once more.
	forced map[string]bool
}

// ledger is the model of a volume in a ledger that executes one operation at a time.
func (h *history) ledger() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{volume{registered: true}} },
		Step: func(state, input, output any) (next []any) {
			v, _ := state.(volume)
			in, _ := input.(asked)
			for _, n := range h.step(h.pass(v, in.call), in.what, output) {
				if n.now <= in.ret {
					next = append(next, n)
				}
			}
			return next
		},
		Equal: func(a, b any) bool {
			x, _ := a.(volume)
			y, _ := b.(volume)
			return x.equal(y)
		},
		DescribeOperation: func(input, output any) string {
			in, _ := input.(asked)
			return fmt.Sprintf("%T%v: %v", in.what, in.what, output)
		},
		DescribeState: func(state any) string { return fmt.Sprint(state) },
	}
	return model.ToModel()
}

// pass advances the time to that of a call. Claims that ended before it are removed.
func (h *history) pass(v volume, call int64) volume {
	if call <= v.now {
		return v
	}
	v.now = call
	ended := func(workload string) bool {
		l, ends := h.lives[workload]
		return ends && l.over < call
	}
	v.claims = slices.DeleteFunc(slices.Clone(v.claims), func(c held) bool { return ended(c.workload) })
	v.done = slices.DeleteFunc(slices.Clone(v.done), ended)
	return v
}

// step returns the states that the volume may be in after an operation, including the unobserved
// transitions that must precede it; none if the outcome is impossible.
func (h *history) step(v volume, what, output any) []volume {
	out, _ := output.(outcome)
	switch in := what.(type) {
	case start:
		return h.start(v, in, out)
	case read:
		answer, _ := output.(shown)
		return some(h.read(v, answer))
	case register:
		v.registered = true
		return []volume{v}
	case deregister:
		switch out {
		case refused:
			return h.held(v, func(held) bool { return true })
		case absent:
			return some(h.out(v))
		}
		v, ok := h.in(v)
		if ok {
			v, ok = h.without(v, func(held) bool { return true })
		}
		v.registered = false
		return some(v, ok)
	}
	panic(fmt.Sprintf("no operation: %T", what))
}

// some returns the volume if it is allowed, else no state.
func some(v volume, may bool) []volume {
	if !may {
		return nil
	}
	return []volume{v}
}

func (h *history) start(v volume, s start, out outcome) []volume {
	switch out {
	case absent:
		return some(h.out(v))
	case refused:
		return h.held(v, excluding(s))
	}
	v, ok := h.in(v)
	if !ok {
		return nil
	}
	if v, ok = h.without(v, excluding(s)); !ok {
		return nil
	}
	return some(v.with(s), true)
}

// read has shown every held claim; a claim that it did not show is gone.
func (h *history) read(v volume, answer shown) (_ volume, ok bool) {
	if answer.absent {
		return h.out(v)
	}
	if v, ok = h.in(v); !ok {
		return v, false
	}
	there := func(c held) bool {
		return slices.ContainsFunc(answer.claims, func(s held) bool { return s.workload == c.workload })
	}
	if v, ok = h.without(v, func(c held) bool { return !there(c) }); !ok {
		return v, false
	}
	for _, c := range answer.claims {
		if v.find(c.workload) < 0 {
			if v, ok = h.done(v, h.lives[c.workload]); !ok {
				return v, false
			}
		}
		if c.leaving {
			if v, ok = h.leave(v, c.workload); !ok {
				return v, false
			}
		}
	}
	return v, slices.Equal(v.claims, slices.SortedFunc(slices.Values(answer.claims), byWorkload))
}

// held returns the states in which a claim of the volume satisfies such: an existing claim, or that
// of an unanswered start.
func (h *history) held(v volume, such func(held) bool) (all []volume) {
	v, ok := h.in(v)
	if !ok {
		return nil
	}
	if slices.ContainsFunc(v.claims, such) {
		return []volume{v}
	}
	for _, l := range h.lives {
		if n, ok := h.done(v, l); ok && slices.ContainsFunc(n.claims, such) {
			all = append(all, n)
		}
	}
	return all
}

// done applies an unanswered start.
func (h *history) done(v volume, l life) (_ volume, ok bool) {
	if !l.unanswered || !v.registered || v.find(l.workload) >= 0 ||
		slices.Contains(v.done, l.workload) && !h.forced[l.node] {
		return v, false
	}
	if v, ok = h.without(v, excluding(l.start)); !ok {
		return v, false
	}
	if v = h.pass(v, l.started); v.now > l.over {
		return v, false
	}
	if !slices.Contains(v.done, l.workload) {
		v.done = append(slices.Clone(v.done), l.workload)
		slices.Sort(v.done)
	}
	return v.with(l.start), true
}

// leave applies the start of a claim's release.
func (h *history) leave(v volume, workload string) (_ volume, ok bool) {
	n := v.find(workload)
	if n < 0 || v.claims[n].leaving {
		return v, n >= 0
	}
	l, ends := h.lives[workload]
	if !ends {
		return v, false
	}
	v = h.pass(v, l.mayGo)
	if n = v.find(workload); n >= 0 {
		v.claims = slices.Clone(v.claims)
		v.claims[n].leaving = true
	}
	return v, true
}

// without removes the claims that satisfy are, if they may be gone.
func (h *history) without(v volume, are func(held) bool) (_ volume, ok bool) {
	for _, c := range v.claims {
		if !are(c) || v.find(c.workload) < 0 {
			continue
		}
		if v, ok = h.leave(v, c.workload); !ok {
			return v, false
		}
	}
	v.claims = slices.DeleteFunc(slices.Clone(v.claims), are)
	return v, true
}

// in returns the registered volume, applying an unanswered register if needed.
func (h *history) in(v volume) (_ volume, ok bool) {
	if v.registered {
		return v, true
	}
	if v.ins == len(h.ins) {
		return v, false
	}
	v = h.pass(v, h.ins[v.ins])
	v.ins++
	v.registered = true
	return v, true
}

// out returns the deregistered volume, applying an unanswered deregister if needed.
func (h *history) out(v volume) (_ volume, ok bool) {
	if !v.registered {
		return v, true
	}
	if v.outs == len(h.outs) {
		return v, false
	}
	if v, ok = h.without(v, func(held) bool { return true }); !ok {
		return v, false
	}
	v = h.pass(v, h.outs[v.outs])
	v.outs++
	v.registered = false
	return v, true
}

// String formats the history for people.
func (h *history) String() string {
	type line struct {
		at   int64
		text string
	}
	seconds := func(at int64) string { return fmt.Sprintf("%9.3f", float64(at)/1e9) }
	var lines []line
	add := func(at int64, until, text string) {
		lines = append(lines, line{at, fmt.Sprintf("%s %s  %s\n", seconds(at), until, text)})
	}
	for _, o := range h.ops {
		in, _ := o.Input.(asked)
		add(o.Call, seconds(o.Return),
			fmt.Sprintf("%s%v: %v", strings.TrimPrefix(fmt.Sprintf("%T", in.what), "chaos."), in.what, o.Output))
	}
	for _, l := range h.lives {
		if l.unanswered {
			add(l.started, seconds(l.over), fmt.Sprintf("start%v: %v", l.start, unknown))
		}
		add(l.mayGo, seconds(l.over), fmt.Sprintf("%s leaves", l.workload))
	}
	for _, call := range h.ins {
		add(call, "   or later", fmt.Sprintf("register: %v", unknown))
	}
	for _, call := range h.outs {
		add(call, "   or later", fmt.Sprintf("deregister: %v", unknown))
	}
	slices.SortFunc(lines, func(a, b line) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.text, b.text)) })
	var all strings.Builder
	for _, l := range lines {
		all.WriteString(l.text)
	}
	return all.String()
}
