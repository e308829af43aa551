package raftnode

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// TestALeaderThatIsHeardAgainIsNotGone: a packet filter refused connections to it for a moment, or another server has
// become the leader.
func TestALeaderThatIsHeardAgainIsNotGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g goneLeader
		time.Sleep(time.Second)
		g.set("a")
		refused := time.Now()
		for _, c := range []struct {
			leader string
			silent time.Time
			want   time.Duration
		}{
			{"a", refused.Add(-time.Second), leaderLease},
			{"a", refused.Add(time.Second), heartbeat},
			{"b", refused.Add(-time.Second), heartbeat},
		} {
			if got := g.patience(raft.ServerID(c.leader), c.silent); got != c.want {
				t.Errorf("%s, last heard %s after the refusal: patience %s, want %s", c.leader, c.silent.Sub(refused), got, c.want)
			}
		}
	})
}
