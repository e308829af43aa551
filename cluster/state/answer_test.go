package state

import (
	"errors"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// TestAnswersMoveWithWhatTheyRead: an answer's index grows when something that the query reads changes, and
// only then.
func TestAnswersMoveWithWhatTheyRead(t *testing.T) {
	l := filled(t)
	l.must(&command.RegisterVolume{Volume: volume("mine", claim.SingleNodeWriter)})
	asked := map[string]command.Query{
		"volume":   &command.QueryVolume{Ref: ref("mine")},
		"workload": &command.QueryWorkload{Ref: workload("own")},
		"claims":   &command.QueryClaims{Workload: workload("own")},
		"node":     &command.QueryNode{Name: "here"},
		"on node":  &command.QueryOnNode{Node: "here"},
		"tokens":   &command.QueryTokens{Node: "here"},
		"left":     &command.QueryLeft{Of: []claim.WorkloadRef{workload("other"), workload("own")}},
		"cluster":  &command.QueryCluster{},
	}
	indexes := func() map[string]uint64 {
		all := map[string]uint64{}
		for name, q := range asked {
			_, all[name], _ = l.Answer(q)
		}
		return all
	}
	expect := func(c command.Command, moved ...string) {
		t.Helper()
		before := indexes()
		l.must(c)
		want := map[string]bool{}
		for _, name := range moved {
			want[name] = true
		}
		for name, index := range indexes() {
			if (index > before[name]) != want[name] {
				t.Errorf("%T: the answer to %q moved from %d to %d", c, name, before[name], index)
			}
		}
	}
	expect(&command.StartWorkload{Ref: workload("other"), Node: "there"}, "left")
	expect(&command.RegisterVolume{Volume: volume("another", claim.SingleNodeWriter)})
	expect(&command.StartWorkload{
		Ref: workload("own"), Node: "here", Claims: []claim.Claim{wanted("mine", claim.SingleNodeWriter, claim.Write)},
		Tokens: []claim.Token{{ID: tokenID(7), Service: "web", Consul: "default"}},
	}, "volume", "workload", "claims", "on node", "tokens", "left")
	expect(&command.EndWorkload{Ref: workload("other")}, "left")
	expect(&command.PutNode{Node: claim.Node{Name: "here"}}, "node")
	expect(&command.PutNode{Node: claim.Node{Name: "here"}})
	expect(&command.DeleteTokens{IDs: []string{tokenID(7)}}, "tokens")
	expect(&command.Identify{Cluster: claim.Cluster{ID: "c"}}, "cluster")
	expect(&command.EndWorkload{Ref: workload("own")}, "volume", "workload", "claims", "on node", "left")
	expect(&command.AdvanceClaims{Items: []command.Advance{{
		Volume: ref("mine"), Workload: workload("own"),
		To: claim.Freed,
	}}},
		"volume", "workload", "claims", "on node", "left")
}

func TestAnswers(t *testing.T) {
	l := filled(t)
	on, index, err := l.Answer(&command.QueryOnNode{Node: "n"})
	if err != nil || index == 0 {
		t.Fatalf("%v at %d", err, index)
	}
	if got := on.(command.OnNode); len(got.Workloads) != 2 || len(got.Claims) != 6 {
		t.Errorf("on the node: %d workloads, %d claims", len(got.Workloads), len(got.Claims))
	}
	left, _, err := l.Answer(&command.QueryLeft{Of: []claim.WorkloadRef{
		workload("w0"), workload("w1"),
		workload("unknown"),
	}})
	if got := left.([]claim.WorkloadRef); err != nil || len(got) != 1 || got[0] != workload("w1") {
		t.Errorf("left: %v, %v", got, err)
	}
	if _, index, err := l.Answer(&command.QueryVolume{Ref: ref("unknown")}); !errors.Is(err, claim.ErrVolumeNotFound) ||
		index > l.AppliedIndex() {
		t.Errorf("an unknown volume: %v at %d", err, index)
	}
	if _, _, err := l.Answer(&command.QueryLeft{Of: make([]claim.WorkloadRef, command.MaxAfter+1)}); !errors.Is(err,
		claim.ErrInvalid) {
		t.Errorf("too many: %v", err)
	}
}

// TestChangesForget: a topic that is no longer stored counts as changed by the last entry.
func TestChangesForget(t *testing.T) {
	var c changes
	c.reset(5)
	c.note(map[Topic]struct{}{"a": {}}, 7)
	if got := c.last([]Topic{"a", "b"}); got != 7 {
		t.Errorf("a at %d, want 7", got)
	}
	if got := c.last([]Topic{"b"}); got != 5 {
		t.Errorf("b at %d, want 5", got)
	}
	many := map[Topic]struct{}{}
	for i := range maxChanges {
		many[Topic(rune(i)+1000)] = struct{}{}
	}
	c.note(many, 9)
	if got := c.last([]Topic{"b"}); got != 9 {
		t.Errorf("b at %d, want 9", got)
	}
}
