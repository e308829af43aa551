package raftnode

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// Raft's leader writes its log in the goroutine that also checks its lease, while others send heartbeats. So a leader
// whose disk hangs stays the leader for as long as it hangs, and nothing is committed. Resign withholds what it sends
// as the leader: the others elect another one, and raft steps down, at the latest when its goroutine goes on and finds
// that no majority has answered for the length of the lease.

// minLate is the least age of a write that counts as late: a busy disk may take most of it.
const minLate = time.Second

// lateFraction is subtracted from the time after which a write is late, so that a leader has resigned by then.
const lateFraction = 100 * time.Millisecond

// recently is how long the duration of a write says something of the next one.
const recently = time.Minute

// writes measures the writes of the log. There is one at a time.
type writes struct {
	late time.Duration
	call func() // when a write is late

	mu           sync.Mutex
	begun, ended time.Time // begun is zero while nothing is written
	took         time.Duration
	failed       error // of a write that is repeated; nil: it has not failed
}

func newWrites(electionTimeout time.Duration, call func()) *writes {
	return &writes{late: max(2*electionTimeout, minLate) - lateFraction, call: call}
}

func (w *writes) measure(write func() error) error {
	begun := time.Now()
	w.mu.Lock()
	w.begun = begun
	w.mu.Unlock()
	late := time.AfterFunc(w.late, w.call)
	err := write()
	late.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun, w.ended, w.took = time.Time{}, time.Now(), time.Since(begun)
	return err
}

// retryWrite is the pause before a write that failed is repeated.
const retryWrite = time.Second

// stable keeps raft's term and its vote (raft.StableStore). Raft ends the process if they cannot be written, which a
// server cannot do without. So a write that fails is repeated for as long as the disk fails: this server neither votes
// nor leads meanwhile, and the agent goes on with what needs no ledger.
type stable struct {
	*wal.WAL
	writes *writes
	log    hclog.Logger
}

// Set writes a value (raft.StableStore).
func (s stable) Set(key, value []byte) error {
	return s.repeat(func() error { return s.WAL.Set(key, value) })
}

// SetUint64 writes a number (raft.StableStore).
func (s stable) SetUint64(key []byte, value uint64) error {
	return s.repeat(func() error { return s.WAL.SetUint64(key, value) })
}

func (s stable) repeat(write func() error) error {
	return s.writes.measure(func() error {
		for said := false; ; said = true {
			err := write()
			s.writes.fails(err)
			if err == nil {
				return nil
			}
			if !said {
				s.log.Error("the ledger's disk fails: this server neither votes nor leads until it can write", "error", err)
			}
			time.Sleep(retryWrite)
		}
	})
}

func (w *writes) fails(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = err
}

// WriteError returns why the write that Unwritten is about is repeated; nil: it hangs.
func (n *Node) WriteError() error {
	n.writes.mu.Lock()
	defer n.writes.mu.Unlock()
	return n.writes.failed
}

// shutDown ends raft. One whose write hangs or fails does not end before that write, and is left to the end of the
// process.
func (n *Node) shutDown() error {
	ended := make(chan error, 1)
	go func() { ended <- n.Shutdown().Error() }()
	for {
		select {
		case err := <-ended:
			return err
		case <-time.After(n.writes.late):
		}
		if n.Late() {
			return errLate
		}
	}
}

// errLate: the disk does not finish a write.
var errLate = errors.New("a write to the log has not ended")

// Unwritten returns the age of the oldest entry that waits for the disk; 0: none does.
func (n *Node) Unwritten() time.Duration {
	n.writes.mu.Lock()
	defer n.writes.mu.Unlock()
	if n.writes.begun.IsZero() {
		return 0
	}
	return time.Since(n.writes.begun)
}

// Late reports whether a write hangs: Unwritten is longer than a leader waits for its disk.
func (n *Node) Late() bool { return n.Unwritten() >= n.writes.late }

// writeTime is how long the disk takes: for the write that is under way, or else for the last one.
func (n *Node) writeTime() time.Duration {
	unwritten := n.Unwritten()
	n.writes.mu.Lock()
	defer n.writes.mu.Unlock()
	if time.Since(n.writes.ended) > recently {
		return unwritten
	}
	return max(unwritten, n.writes.took)
}

// OthersWrite reports whether a majority of the voters does without this one, and their disks are not late too: one of
// them can lead then.
func (n *Node) OthersWrite(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, n.writes.late)
	defer cancel()
	servers, err := n.servers()
	if err != nil {
		return false
	}
	voters, asked, answers := 0, 0, make(chan bool, len(servers))
	for _, s := range servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if id := string(s.ID); id != n.cfg.ID {
			asked++
			go func() {
				status, err := n.Ask(ctx, id)
				answers <- err == nil && status.Report.Room && status.WriteTime < n.writes.late
			}()
		}
	}
	good := 0
	for range asked {
		if <-answers {
			good++
		}
	}
	return good > voters/2
}

// errWithheld is the result of a request of a leader that resigns.
var errWithheld = errors.New("this server's disk hangs: it sends nothing as the leader")

// Resign withholds this server's requests as the leader until raft has stepped down, or ctx ends.
func (n *Node) Resign(ctx context.Context) {
	n.withheld.Store(true)
	defer n.withheld.Store(false)
	for n.State() == raft.Leader {
		select {
		case <-ctx.Done():
			return
		case <-time.After(catchUpPause):
		}
	}
}

// Resigning reports whether this server withholds its requests.
func (n *Node) Resigning() bool { return n.withheld.Load() }
