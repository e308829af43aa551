package raftnode

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/internal/notify"
)

// When a process ends, its kernel closes its connections and its port at once. So when a connection of raft's has
// ended and the leader's port refuses connections, the leader has not become slow: it is gone, and no process leads in
// its term any more. Then a server waits for the leader's lease only, not for the heartbeat timeout. Everything else is
// left to that: a machine without power and a cut cable close and refuse nothing; a process that is busy or frozen, or
// whose program is being replaced, has its port, at which the kernel accepts connections.

// reprobe is the pause between two looks at a leader that is silent since a connection has ended, but has its port.
const reprobe = heartbeat / 10

// goneLeader is a leader whose process has ended.
type goneLeader struct {
	mu    sync.Mutex
	name  raft.ServerID
	at    time.Time // when its port refused a connection
	found notify.Broadcast
}

func (g *goneLeader) set(name raft.ServerID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.name, g.at = name, time.Now()
	g.found.Notify()
}

// patience is how long a leader may be silent since a given time before another one is looked for.
func (g *goneLeader) patience(leader raft.ServerID, silent time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.name == leader && !silent.After(g.at) {
		return leaderLease
	}
	return heartbeat
}

// watchProcess looks whether the leader's process has ended whenever a connection of raft's has, until ctx ends.
func (n *Node) watchProcess(ctx context.Context) {
	ended := n.streams.ended.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ended:
		}
		ended = n.streams.ended.Wait()
		for {
			began := time.Now()
			_, leader := n.LeaderWithID()
			if leader == "" || n.State() != raft.Follower || time.Since(n.LastContact()) > heartbeat {
				break
			}
			if n.streams.refused(string(leader)) {
				n.gone.set(leader)
				break
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(reprobe):
			}
			if n.LastContact().After(began) {
				break
			}
		}
	}
}

// refused reports whether nothing listens at any address of a server.
func (s *streams) refused(name string) bool {
	addresses, _ := s.addresses(name)
	refusals := make(chan bool, len(addresses))
	for _, address := range addresses {
		go func() {
			conn, err := s.under.Dial(name, address, heartbeat)
			if err == nil {
				s.drop(conn)
			}
			refusals <- errors.Is(err, syscall.ECONNREFUSED)
		}()
	}
	for range addresses {
		if !<-refusals {
			return false
		}
	}
	return len(addresses) > 0
}
