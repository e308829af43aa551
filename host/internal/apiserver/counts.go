package apiserver

import (
	"context"
	"sync"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/workload"
)

// ledgerCounts are the numbers of what is in the ledger.
type ledgerCounts struct {
	volumes int
	tokens  int
	claims  map[claim.State]int // every state has a number
}

func (c ledgerCounts) total() (all, releasing int) {
	for state, n := range c.claims {
		all += n
		if state.Releasing() {
			releasing += n
		}
	}
	return all, releasing
}

// counts counts what is in the ledger, again only when the ledger has changed.
type counts struct {
	mu    sync.Mutex
	index uint64 // of the ledger when it was counted
	last  ledgerCounts
}

// ledgerHere says whether this agent has the ledger and can read it now: it is a server, and
// has caught up since its start.
func (s *Server) ledgerHere() bool {
	if s.cfg.Ledger == nil {
		return false
	}
	select {
	case <-s.cfg.Ledger.Ready():
		return true
	default:
		return false
	}
}

func (c *counts) read(ctx context.Context, ledger Ledger) (ledgerCounts, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	index := ledger.Stats().AppliedIndex // taken first: what comes in meanwhile is counted next time
	if c.last.claims != nil && c.index == index {
		return c.last, nil
	}
	now := ledgerCounts{claims: map[claim.State]int{}}
	for _, s := range claim.States {
		if s != claim.Freed {
			now.claims[s] = 0
		}
	}
	err := ledger.Read(ctx, func(tx *state.ReadTx) error {
		volumes, _, err := tx.Volumes(state.VolumeQuery{})
		if err != nil {
			return err
		}
		now.volumes = len(volumes)
		claims, err := tx.AllClaims()
		if err != nil {
			return err
		}
		for _, c := range claims {
			now.claims[c.State]++
		}
		tokens, err := tx.Tokens("")
		now.tokens = len(tokens)
		return err
	})
	if err != nil {
		return now, err
	}
	c.index, c.last = index, now
	return now, nil
}

// workloadCounts are the workloads of this node by state; every state has a number.
func (s *Server) workloadCounts() map[string]int {
	n := map[string]int{}
	for _, state := range []workload.State{workload.Starting, workload.Running, workload.Unknown, workload.Stopping, workload.Stopped, workload.Failed} {
		n[string(state)] = 0
	}
	for _, w := range s.cfg.Workloads.List() {
		n[string(w.State)]++
	}
	return n
}
