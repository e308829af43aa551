package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/clustertest"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/powerloss"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestUnwrittenTail stalls the disk of a leader's log while commands arrive, so that entries which the leader has sent,
// or was about to send, are not on its own disk. Until they are, they are no part of any ledger; whatever happens then,
// all ledgers agree.
func TestUnwrittenTail(t *testing.T) {
	t.Parallel()
	testbin.RequireRoot(t, "a leader that loses the end of its log")
	for _, n := range []int{3, 5} {
		for name, end := range map[string]func(t *testing.T, s *stalled) (holder string){
			"lost, and those who have it are away": overwritten,
			"lost, and those who have it lead":     kept,
			"lost unsent":                          lostUnsent,
			"written late, unsent":                 truncated,
		} {
			t.Run(fmt.Sprintf("%d servers: %s", n, name), func(t *testing.T) {
				t.Parallel()
				sent := name != "lost unsent" && name != "written late, unsent"
				s := stall(t, n, sent)
				s.agree(t, end(t, s))
				if err := (<-s.first.outcome).Err; err == nil {
					t.Error("the leader has acknowledged a command that was not on its disk")
				}
			})
		}
	}
}

// stalled is a cluster whose leader's log cannot be written.
type stalled struct {
	*clustertest.Cluster
	leader  *clustertest.Host
	holders []*clustertest.Host // have the tail: with the leader the smallest majority; nil: it was not sent
	cut     map[string]func()   // loses a stopped server's unwritten log
	volume  claim.Volume
	first   applied // the claim in the tail
	resume  func()
	lose    func()
}

// stall brings a claim by node "first" into the tail.
func stall(t *testing.T, n int, sent bool) *stalled {
	t.Helper()
	s := &stalled{
		Cluster: clustertest.Prepare(t, n, clustertest.Options{}), cut: map[string]func(){},
	}
	for _, h := range s.Hosts() {
		dir := filepath.Join(h.Dir, "raft")
		check.NoError(t, os.MkdirAll(dir, 0o700))
		s.cut[h.Name] = powerloss.DiskAt(t, "ext4", dir)
	}
	t.Cleanup(func() { // before the disks go
		for _, h := range s.Hosts() {
			h.Stop(t)
		}
	})
	for _, h := range s.Hosts() {
		h.Start(t)
	}
	s.WaitReady(t)
	s.WaitVoters(t, names(s.Hosts())...)
	// A machine that is slow may end a leadership too early: half a second without the others is enough.
	for try := 1; !s.try(t, sent, fmt.Sprint("v", try)); try++ {
		s.resume()
		s.Heal()
	}
	for _, h := range s.Up() {
		if holder := s.holder(t, h); holder != "" {
			t.Errorf("the ledger of %s has a claim by %s, which is not on the leader's disk", h.Name, holder)
		}
	}
	return s
}

// try is stall for one volume. It reports whether the leader led until the end.
func (s *stalled) try(t *testing.T, sent bool, id string) bool {
	t.Helper()
	register(t, s.Client(), id)
	everywhere(t, s.Cluster, id)
	s.volume, s.leader, s.holders = volume(id), s.WaitLeader(t), nil
	away := []*clustertest.Host{s.leader}
	if sent {
		others := slices.DeleteFunc(s.Up(), func(h *clustertest.Host) bool { return h == s.leader })
		s.holders, away = others[:len(others)/2], others[len(others)/2:]
	}
	s.Partition(names(away)...)
	s.resume, s.lose = powerloss.Stall(t, filepath.Join(s.leader.Dir, "raft"))
	first := s.apply(t, "first")
	s.first = first
	// What is sent with a second entry is the commit index after the first one.
	return s.reached(t, first) && (!sent || s.reached(t, s.apply(t, "second")))
}

// applied is a command that the leader is given.
type applied struct {
	index   uint64
	outcome chan cluster.Applied
}

// apply gives the leader a claim by a node.
func (s *stalled) apply(t *testing.T, node string) applied {
	t.Helper()
	a := applied{s.leader.Stats().LastIndex + 1, make(chan cluster.Applied, 1)}
	go func() {
		a.outcome <- s.leader.ApplyFor(t.Context(), &command.StartWorkload{
			Ref: workload(node + "-" + s.volume.ID), Node: node, Claims: []claim.Claim{want(s.volume, claim.Write)},
		})[0]
	}()
	return a
}

// reached waits until an entry is in the logs of those who are to have it, and raft takes it for committed if these are
// enough. It returns false if the leader has ended it before.
func (s *stalled) reached(t *testing.T, a applied) (is bool) {
	t.Helper()
	clustertest.Eventually(t, fmt.Sprint("entry ", a.index, " is in the logs"), func() bool {
		stats := s.leader.Stats()
		is = stats.LastIndex >= a.index && (s.holders == nil || stats.CommitIndex >= a.index)
		for _, h := range s.holders {
			is = is && h.Stats().LastIndex >= a.index
		}
		return is || len(a.outcome) > 0
	})
	return is
}

// claimNow claims the volume by a node, through whoever leads.
func (s *stalled) claimNow(t *testing.T, node string) {
	t.Helper()
	_, err := s.Client().StartWorkload(within(t), claim.Run{Ref: workload(node + "-" + s.volume.ID), Node: node},
		[]claim.Claim{want(s.volume, claim.Write)})
	check.NoError(t, err)
}

// holder returns the node that holds the volume according to a server's own ledger; empty: none.
func (s *stalled) holder(t *testing.T, h *clustertest.Host) (node string) {
	t.Helper()
	check.NoError(t, h.Read(within(t), func(tx *state.ReadTx) error {
		claims, err := tx.Claims(s.volume.VolumeRef)
		for _, c := range claims {
			node = c.Node
		}
		return err
	}))
	return node
}

// agree waits until all servers run and have the same holder.
func (s *stalled) agree(t *testing.T, holder string) {
	t.Helper()
	s.Heal()
	for _, h := range s.Hosts() {
		clustertest.Eventually(t, fmt.Sprintf("%s has the claim by %s", h.Name, holder), func() bool {
			return s.holder(t, h) == holder
		})
	}
	register(t, s.Client(), "last")
	everywhere(t, s.Cluster, "last")
	for _, h := range s.Hosts() {
		if err := h.Stats().Err; err != nil {
			t.Errorf("the ledger of %s has stopped: %v", h.Name, err)
		}
	}
}

// losePower ends the leader, without what it has not written, and starts it again.
func (s *stalled) losePower(t *testing.T) {
	t.Helper()
	s.lose()
	s.leader.Stop(t)
	s.cut[s.leader.Name]()
}

// overwritten: a majority without the tail agrees on something else.
func overwritten(t *testing.T, s *stalled) string {
	t.Helper()
	for _, h := range s.holders {
		h.Stop(t)
	}
	s.losePower(t)
	s.Heal()
	s.leader.Start(t)
	s.claimNow(t, "other")
	for _, h := range s.holders {
		h.Start(t)
	}
	return "other"
}

// kept: whoever leads next has the tail.
func kept(t *testing.T, s *stalled) string {
	t.Helper()
	s.Partition(s.leader.Name)
	s.losePower(t)
	s.WaitLeader(t)
	s.leader.Start(t)
	return "first"
}

// lostUnsent: the others agree on something else before the leader's power is lost.
func lostUnsent(t *testing.T, s *stalled) string {
	t.Helper()
	s.claimNow(t, "other")
	s.losePower(t)
	s.leader.Start(t)
	return "other"
}

// truncated: the leader writes its tail when it leads no more, and must replace it.
func truncated(t *testing.T, s *stalled) string {
	t.Helper()
	s.claimNow(t, "other")
	s.resume()
	return "other"
}
