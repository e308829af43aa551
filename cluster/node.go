// Package cluster is the ledger: what all servers agree on about volumes, claims, workloads, nodes and drivers.
// Open a Node, change the ledger through its methods, read it through Read, and wait for changes with Watch.
// DESIGN.md gives the reasons.
//
// Errors that comments name without their package are from cluster/claim (refusals) and cluster/command.
//
// The rules are in cluster/claim, the log entries in cluster/command, and the files in cluster/state.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/backup"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/fsm"
	"github.com/pannier/pannier/cluster/raftnode"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/internal/notify"
)

// Config configures a node of the ledger.
type Config struct {
	// Dir is the node's own directory; it is created if needed.
	Dir string
	// Name is this server's name, unique in the cluster; it never changes.
	Name string
	// BootstrapExpect is how many servers form the cluster: 1 for a single host. With 0 this server forms none,
	// and waits to be added to one.
	BootstrapExpect int
	// ElectionTimeout is how long servers wait for a leader (raftnode.Config); 0: the default.
	ElectionTimeout time.Duration
	// Streams connect to the other servers, and Members says where they are. Both nil: there are no others.
	// Streams are closed with the node, Members are not.
	Streams raftnode.Streams
	Members Members
	// Remote sends commands and queries to the leader; nil: a server that does not lead refuses them with
	// ErrNotLeader.
	Remote Ledger
	// Autopilot are the settings by which a leader manages the servers until an operator changes them
	// (SetAutopilot); nil: claim.DefaultAutopilot.
	Autopilot *claim.Autopilot
	// Logger may be nil.
	Logger hclog.Logger
	// Now is the time for the stamps of commands; nil: time.Now.
	Now func() time.Time
	// Key encrypts this server's copy of the ledger on disk: 16, 24 or 32 bytes; empty: it is plain. It does not
	// encrypt the raft log.
	Key []byte
}

// Node is this server's part of the ledger.
type Node struct {
	dir     string
	name    string
	store   *state.Store
	raft    *raftnode.Node
	remote  Ledger // nil: none
	members Members
	log     hclog.Logger
	now     func() time.Time

	autopilot  claim.Autopilot // used until the ledger has settings
	leadership leadership
	verifying  verifier
	late       chan struct{}    // the disk hangs
	resigned   notify.Broadcast // and so another server is to lead

	mu       sync.Mutex
	closed   bool
	inFlight sync.WaitGroup  // commands between submit and their outcome
	running  context.Context // ends when the node is closed
	stop     context.CancelFunc
	loops    sync.WaitGroup
	closing  sync.Once
	closeErr error
}

// Open opens the ledger and joins raft. It returns before there is a leader: see WaitReady. ctx bounds the opening
// only.
func Open(ctx context.Context, cfg Config) (*Node, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := claim.CheckID(cfg.Name); err != nil {
		return nil, fmt.Errorf("open the ledger: server name %w", err)
	}
	log := cfg.Logger
	if log == nil {
		log = hclog.NewNullLogger()
	}
	now := cfg.Now
	if now == nil {
		now = time.Now
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	if err := needSpace(cfg.Dir, spaceToRelease); err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	store, err := state.Open(filepath.Join(cfg.Dir, "state"), log.Named("state"), state.WithKey(cfg.Key))
	if err != nil {
		return nil, err
	}
	n := &Node{
		dir: cfg.Dir, name: cfg.Name, store: store, remote: cfg.Remote, members: cfg.Members, log: log, now: now,
		late: make(chan struct{}, 1),
	}
	n.leadership.init()
	if n.autopilot = claim.DefaultAutopilot(); cfg.Autopilot != nil {
		n.autopilot = *cfg.Autopilot
	}
	n.raft, err = raftnode.Open(raftnode.Config{ //nolint:contextcheck // it runs until Close, longer than ctx
		Dir: filepath.Join(cfg.Dir, "raft"), ID: cfg.Name, BootstrapExpect: cfg.BootstrapExpect,
		ElectionTimeout: cfg.ElectionTimeout, Streams: cfg.Streams, Members: cfg.Members, Vet: n.vet,
		Known: n.registered, Autopilot: n.Autopilot, Report: n.report,
		Room: room(cfg), Late: n.noteLate, FSM: fsm.New(store), Applied: store.AppliedIndex(),
		SnapshotIndex: backup.SnapshotIndex,
		Logger:        log.Named("raft"),
	})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	n.running, n.stop = context.WithCancel(context.Background())
	n.loops.Go(func() { n.followLeadership(n.running) })
	if cfg.Streams != nil {
		n.loops.Go(func() { n.catchUp(n.running) })
		n.loops.Go(func() { n.WhileLeader(n.running, n.manage) })
		n.loops.Go(func() { n.WhileLeader(n.running, n.leaveForRoom) })
		n.loops.Go(func() { n.WhileLeader(n.running, n.leaveForDisk) })
	}
	return n, nil
}

// Close waits for commands in progress, stops raft and closes the ledger. It may be called again.
func (n *Node) Close() error {
	n.closing.Do(func() {
		n.mu.Lock()
		n.closed = true
		n.mu.Unlock()
		// Raft answers every command while it runs, but not all commands that it still holds when it is shut down.
		n.inFlight.Wait()
		n.stop()
		n.loops.Wait()
		n.closeErr = errors.Join(n.raft.Close(), n.store.Close())
	})
	return n.closeErr
}

// Read calls fn with one snapshot of this server's ledger, once it has caught up after the start (WaitReady). What
// fn reads is consistent, and fn may keep and change it. On a server that does not lead it may be stale (Age);
// ReadLatest never is.
func (n *Node) Read(ctx context.Context, fn func(tx *state.ReadTx) error) error {
	if err := n.WaitReady(ctx); err != nil {
		return err
	}
	return n.store.View(fn)
}

// ChangedAt returns an index after which none of the topics has changed on this server. Get it before reading.
func (n *Node) ChangedAt(topics ...state.Topic) uint64 { return n.store.ChangedAt(topics...) }

// Watch returns a channel that is closed by the next change of one of the topics, when ctx ends, and when the node
// is closed. Get the channel, then read, then wait, so that no change is missed. A caller that stops waiting must
// end ctx.
func (n *Node) Watch(ctx context.Context, topics ...state.Topic) <-chan struct{} {
	return n.store.Watch(ctx, topics...)
}

// Snapshot makes raft take a snapshot now. It is no error if there is nothing new.
func (n *Node) Snapshot() error {
	err := n.raft.Snapshot().Error()
	if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("take a snapshot of the ledger: %w", err)
	}
	return nil
}

// Stats are a node's numbers at one moment.
type Stats struct {
	Leader       bool          // this node leads
	LeaderName   string        // the leader; empty: none is known
	Age          time.Duration // see Age
	Term         uint64
	LastIndex    uint64 // of the log
	CommitIndex  uint64
	AppliedIndex uint64 // of the ledger: behind CommitIndex by entries that mean nothing to it
	Err          error  // ErrStopped and its cause, if the ledger accepts no more commands
	Full         error  // ErrDiskFull and where, if there is no room for more
	Stalled      error  // ErrDiskHangs and since when, if the disk does not finish a write
	// Unwritten is the age of the oldest entry that waits for the disk; 0: none does.
	Unwritten time.Duration
}

// Size is the size of the ledger on disk, in bytes. It reads the directory.
func (n *Node) Size() int64 { return n.store.Size() }

// Stats returns the node's present numbers. It is called for each check of the health, and reads no files.
func (n *Node) Stats() Stats {
	_, leader := n.raft.LeaderWithID()
	if n.raft.Resigning() {
		leader = ""
	}
	return Stats{
		Leader:       n.Leader(),
		LeaderName:   string(leader),
		Age:          n.Age(),
		Term:         n.raft.CurrentTerm(),
		LastIndex:    n.raft.LastIndex(),
		CommitIndex:  n.raft.CommitIndex(),
		AppliedIndex: n.store.AppliedIndex(),
		Err:          n.store.Err(),
		Full:         needSpace(n.dir, SpaceToGrow),
		Stalled:      n.stalled(),
		Unwritten:    n.raft.Unwritten(),
	}
}
