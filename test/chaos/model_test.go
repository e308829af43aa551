package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// What clients ask of a volume, and what a workload's claim goes through. Each is one
// operation of the history.
type (
	// start claims the volume for a workload.
	start struct {
		access, workload, node string
		write                  bool
	}
	// release begins to let go of a workload's claim.
	release struct{ workload string }
	// gone is the end of a release: nothing is left of the claim.
	gone struct{ workload string }
	// read reads the volume with its claims; its outcome is a shown.
	read       struct{}
	register   struct{}
	deregister struct{}
)

// outcome of an operation.
type outcome string

const (
	done    outcome = "done"
	refused outcome = "refused" // because of claims that stand
	absent  outcome = "absent"  // the volume is not registered
	unknown outcome = "unknown" // it was done once in its time, or not at all
)

// shown is what a read answered.
type shown struct {
	absent bool
	claims []held
}

// held is one claim. One that is leaving may be gone: nobody is told when that happens.
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

// volume is the model's state: a volume of the ledger.
type volume struct {
	registered bool
	claims     []held // in the order of workloads
}

func (v volume) equal(o volume) bool {
	return v.registered == o.registered && slices.Equal(v.claims, o.claims)
}

func (v volume) String() string {
	if !v.registered {
		return "not registered"
	}
	return fmt.Sprint(v.claims)
}

// without is the volume when those claims are gone.
func (v volume) without(are func(held) bool) volume {
	v.claims = slices.DeleteFunc(slices.Clone(v.claims), are)
	return v
}

func (v volume) find(workload string) int {
	return slices.IndexFunc(v.claims, func(h held) bool { return h.workload == workload })
}

// excludes says whether a claim keeps another workload's from being given (SEMANTICS: modes
// and claims).
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

// ledger is the volume as one ledger that does one thing at a time has it.
var ledger = porcupine.NondeterministicModel{
	Init: func() []any { return []any{volume{registered: true}} },
	Step: func(state, input, output any) (next []any) {
		v, _ := state.(volume)
		for _, n := range v.step(input, output) {
			next = append(next, n)
		}
		return next
	},
	Equal: func(a, b any) bool {
		x, _ := a.(volume)
		y, _ := b.(volume)
		return x.equal(y)
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%T%v: %v", input, input, output) },
	DescribeState:     func(state any) string { return fmt.Sprint(state) },
}

// step is what the volume may be after an operation; nothing: it cannot have had that
// outcome.
func (v volume) step(input, output any) []volume {
	out, _ := output.(outcome)
	if out == unknown {
		return append(v.step(input, done), v) // it may not have been done either
	}
	switch in := input.(type) {
	case start:
		return v.start(in, out)
	case release:
		if n := v.find(in.workload); n >= 0 {
			v.claims = slices.Clone(v.claims)
			v.claims[n].leaving = true
		}
		return []volume{v}
	case gone:
		if n := v.find(in.workload); n >= 0 && !v.claims[n].leaving {
			return nil
		}
		return []volume{v.without(func(h held) bool { return h.workload == in.workload })}
	case read:
		answer, _ := output.(shown)
		return v.read(answer)
	case register:
		v.registered = true
		return []volume{v}
	case deregister:
		return v.deregister(out)
	}
	panic(fmt.Sprintf("no operation: %T", input))
}

func (v volume) start(in start, out outcome) []volume {
	others := func(leaving bool) func(held) bool {
		return func(h held) bool {
			return h.workload != in.workload && (leaving || !h.leaving) && excludes(in.access, h, in)
		}
	}
	switch {
	case out == absent:
		if v.registered {
			return nil
		}
		return []volume{v}
	case !v.registered:
		return nil
	case out == refused:
		if !slices.ContainsFunc(v.claims, others(true)) {
			return nil
		}
		return []volume{v}
	case slices.ContainsFunc(v.claims, others(false)):
		return nil
	}
	v = v.without(others(true)) // those that were leaving have to be gone
	if v.find(in.workload) < 0 {
		v.claims = append(slices.Clone(v.claims), held{workload: in.workload, node: in.node, write: in.write})
		slices.SortFunc(v.claims, func(a, b held) int { return cmp.Compare(a.workload, b.workload) })
	}
	return []volume{v}
}

// read must have shown all that is held; what it has not shown of those that leave is gone.
func (v volume) read(answer shown) []volume {
	if answer.absent || !v.registered {
		if answer.absent && !v.registered {
			return []volume{v}
		}
		return nil
	}
	for _, c := range answer.claims {
		if !slices.Contains(v.claims, c) {
			return nil
		}
	}
	missing := func(h held) bool { return !slices.Contains(answer.claims, h) }
	if slices.ContainsFunc(v.claims, func(h held) bool { return missing(h) && !h.leaving }) {
		return nil
	}
	return []volume{v.without(missing)}
}

func (v volume) deregister(out outcome) []volume {
	stands := slices.ContainsFunc(v.claims, func(h held) bool { return !h.leaving })
	switch {
	case out == refused && v.registered && len(v.claims) > 0:
		return []volume{v}
	case out == refused || stands:
		return nil
	}
	// It is not there afterwards. An agent repeats a call whose answer was lost, and who
	// did it is told then that there is nothing to do.
	return []volume{{}}
}

// describe shows an operation of the history to people.
func describe(o porcupine.Operation) string {
	kind := strings.TrimPrefix(fmt.Sprintf("%T", o.Input), "chaos.")
	return fmt.Sprintf("%9.3f %9.3f  %s%v: %v", float64(o.Call)/1e9, float64(o.Return)/1e9, kind, o.Input, o.Output)
}
