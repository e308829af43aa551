package state

import (
	"errors"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

// TestDecisionsHaveATerm: a leader's decision is refused in an entry of another term, and changes nothing,
// for every kind of command. Commands of other callers are applied in every term.
func TestDecisionsHaveATerm(t *testing.T) {
	l := open(t)
	l.must(&command.PutNode{Node: claim.Node{Name: "a", BootID: "boot"}})
	before := l.records()
	apply := func(term uint64, c command.Command) error {
		t.Helper()
		l.index++
		command.SetAt(c, now)
		entry, err := command.Encode(c)
		check.NoError(t, err)
		decoded, err := command.Decode(entry)
		check.NoError(t, err)
		outcomes, err := l.Apply([]Entry{{Index: l.index, Term: term, Command: decoded}})
		check.NoError(t, err)
		return outcomes[0].Err
	}
	for _, c := range []command.Command{
		&command.SetNodeStatus{Name: "a", Status: claim.NodeDown},
		&command.PutLiveness{Liveness: claim.Liveness{StopAfter: 1}},
		&command.DeleteNode{Name: "a"},
	} {
		command.SetTerm(c, 7)
		command.SetKey(c, "key")
		for _, term := range []uint64{6, 8} {
			if err := apply(term, c); !errors.Is(err, command.ErrNotLeader) {
				t.Errorf("%T of term 7 in term %d: %v", c, term, err)
			}
		}
	}
	l.sameAs(before, "refused")
	down := &command.SetNodeStatus{Name: "a", Status: claim.NodeDown}
	command.SetTerm(down, 7)
	check.NoError(t, apply(7, down))
	check.NoError(t, apply(9, &command.SetNodeStatus{Name: "a", Status: claim.NodeReady}))
}
