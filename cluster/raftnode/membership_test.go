package raftnode

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"github.com/pannier/pannier/cluster/discovery"
)

// gossip is what is known of other agents.
type gossip []discovery.Member

func (g gossip) Members() []discovery.Member { return g }
func (gossip) Changed() <-chan struct{}      { return nil }
func (gossip) ForceLeave(string, bool) error { return nil }
func failedServers(ids ...raft.ServerID) (all []*autopilot.Server) {
	for _, id := range ids {
		all = append(all, &autopilot.Server{ID: id, NodeStatus: autopilot.NodeFailed})
	}
	return all
}

// TestServersThatAnswerAreNotRemoved: gossip alone removes no server. Whoever has its key can say of each server that
// it has failed, and a slow network makes it say so of servers that raft reaches.
func TestServersThatAnswerAreNotRemoved(t *testing.T) {
	const threshold, silence, ago = time.Second, 10 * time.Second, time.Hour
	now := time.Now()
	for name, row := range map[string]struct {
		began     time.Duration // ago
		answered  map[raft.ServerID]time.Time
		threshold time.Duration
		removed   []raft.ServerID
	}{
		"both answer":          {began: ago, answered: map[raft.ServerID]time.Time{"a": now, "b": now}},
		"one answers":          {began: ago, answered: map[raft.ServerID]time.Time{"a": now}, removed: []raft.ServerID{"b"}},
		"none answers":         {began: ago, removed: []raft.ServerID{"a", "b"}},
		"the leader has begun": {},
		"the last answer is old": {
			began: ago, answered: map[raft.ServerID]time.Time{"a": now.Add(-silence - time.Second), "b": now},
			removed: []raft.ServerID{"a"},
		},
		"the operator's threshold is longer": {
			began: ago, answered: map[raft.ServerID]time.Time{"a": now.Add(-silence - time.Second), "b": now}, threshold: ago,
		},
	} {
		p := &promoter{m: &manager{began: now.Add(-row.began), silence: silence, answered: row.answered}}
		conf := &autopilot.Config{LastContactThreshold: max(threshold, row.threshold)}
		got := p.FilterFailedServerRemovals(conf, nil, &autopilot.FailedServers{
			FailedVoters: failedServers("a", "b"), FailedNonVoters: failedServers("a", "b"),
			StaleVoters: []raft.ServerID{"gossip does not know it"}, StaleNonVoters: []raft.ServerID{"nor this one"},
		})
		id := func(all []*autopilot.Server) (ids []raft.ServerID) {
			for _, s := range all {
				ids = append(ids, s.ID)
			}
			return ids
		}
		if voters := id(got.FailedVoters); !slices.Equal(voters, row.removed) {
			t.Errorf("%s: the voters %v are removed, want %v", name, voters, row.removed)
		}
		if others := id(got.FailedNonVoters); !slices.Equal(others, row.removed) {
			t.Errorf("%s: the non-voters %v are removed, want %v", name, others, row.removed)
		}
		if len(got.StaleVoters)+len(got.StaleNonVoters) > 0 {
			t.Errorf("%s: %v and %v are removed, which gossip does not know", name, got.StaleVoters, got.StaleNonVoters)
		}
	}
}

// TestAnswersAreNoted: a server that answers the leader's question has answered, and no other.
func TestAnswersAreNoted(t *testing.T) {
	answers := func(context.Context, ask) reply { return reply{Status: Status{ID: "a", LastIndex: 7}} }
	n := &Node{cfg: Config{ID: "a"}, streams: &streams{name: "a", members: gossip{}, answer: answers}}
	m := &manager{n: n, answered: map[raft.ServerID]time.Time{}}
	stats := m.FetchServerStats(t.Context(), map[raft.ServerID]*autopilot.Server{"a": {}, "b": {}})
	if len(stats) != 1 || stats["a"] == nil || stats["a"].LastIndex != 7 {
		t.Errorf("the statuses are %+v", stats)
	}
	if len(m.answered) != 1 || time.Since(m.answered["a"]) > time.Minute {
		t.Errorf("answers were noted of %v", m.answered)
	}
}
