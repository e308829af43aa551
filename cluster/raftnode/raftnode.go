package raftnode

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// Config is what a raft node needs.
type Config struct {
	// Dir is the node's own directory: wal/ and snapshots/ are made in it.
	Dir string
	// ID is the server's name, the same for all time.
	ID string
	// BootstrapExpect is how many servers form the cluster. With 1, a node without
	// raft state bootstraps itself.
	BootstrapExpect int
	// Transport reaches the other servers; nil for a single voter, which needs
	// none. The caller closes it after Close.
	Transport raft.Transport
	FSM       raft.BatchingFSM
	// Applied is the index that the FSM holds by itself, and SnapshotIndex reads that
	// index out of a snapshot: a snapshot is restored at the start only if it is ahead.
	Applied       uint64
	SnapshotIndex func(io.Reader) (uint64, error)
	Logger        hclog.Logger
}

// Timings and sizes of raft.
const (
	// Elections among several servers; raft's own defaults. A single voter does not wait
	// for them (startAlone).
	heartbeat   = time.Second
	leaderLease = 500 * time.Millisecond
	// maxAppend bounds a group commit: one fsync of the log, one transaction.
	maxAppend = 256
	// segmentSize is that of the log's files, which are allocated whole.
	segmentSize = 8 << 20
	// A snapshot is looked for in this interval, taken after so many entries, and
	// leaves so many behind it for a server that lags.
	snapshotInterval  = time.Minute
	snapshotThreshold = 16 << 10
	trailingLogs      = 8 << 10
	snapshotsKept     = 2
)

// Node is a running raft node.
type Node struct {
	*raft.Raft
	// Leadership tells of each change: true where this node has become the leader.
	Leadership <-chan bool

	log       *wal.WAL
	transport *raft.InmemTransport // nil where it is the caller's
	closing   sync.Once
	closeErr  error
}

// Open starts raft. It returns before there is a leader.
func Open(cfg Config) (n *Node, err error) {
	logger := cfg.Logger
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	walDir := filepath.Join(cfg.Dir, "wal")
	if err := os.MkdirAll(walDir, 0o700); err != nil {
		return nil, fmt.Errorf("open raft: %w", err)
	}
	n = &Node{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open raft in %s: %w", cfg.Dir, err), n.Close())
		}
	}()
	if n.log, err = wal.Open(walDir, wal.WithSegmentSize(segmentSize), wal.WithLogger(quieter(logger.Named("wal"), cfg))); err != nil {
		return n, fmt.Errorf("log: %w", err)
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(cfg.Dir, snapshotsKept, quieter(logger.Named("snapshots"), cfg))
	if err != nil {
		return n, fmt.Errorf("snapshots: %w", err)
	}
	transport := cfg.Transport
	if transport == nil {
		_, n.transport = raft.NewInmemTransport(raft.ServerAddress(cfg.ID))
		transport = n.transport
	}

	conf, leadership, err := config(cfg, snapshots, logger)
	if err != nil {
		return n, err
	}
	n.Leadership = leadership
	if err := bootstrap(cfg, conf, n.log, snapshots, transport); err != nil {
		return n, err
	}
	if n.Raft, err = raft.NewRaft(conf, cfg.FSM, n.log, n.log, snapshots, transport); err != nil {
		return n, err
	}
	if err := n.startAlone(cfg.ID); err != nil {
		return n, err
	}
	return n, nil
}

func config(cfg Config, snapshots raft.SnapshotStore, logger hclog.Logger) (*raft.Config, <-chan bool, error) {
	ahead, err := snapshotAhead(cfg, snapshots)
	if err != nil {
		return nil, nil, err
	}
	leadership := make(chan bool, 8)
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(cfg.ID)
	conf.Logger = quieter(logger, cfg)
	conf.NotifyCh = leadership
	// One more than what it will be set to: see startAlone.
	conf.HeartbeatTimeout = heartbeat + time.Millisecond
	conf.ElectionTimeout = heartbeat + time.Millisecond
	conf.LeaderLeaseTimeout = leaderLease
	conf.MaxAppendEntries = maxAppend
	conf.BatchApplyCh = true
	conf.SnapshotInterval = snapshotInterval
	conf.SnapshotThreshold = snapshotThreshold
	conf.TrailingLogs = trailingLogs
	conf.NoSnapshotRestoreOnStart = !ahead
	conf.NoLegacyTelemetry = true
	return conf, leadership, nil
}

// snapshotAhead says whether the newest snapshot has entries that the FSM lacks.
// Raft itself goes on after its snapshot, so the FSM would miss them.
func snapshotAhead(cfg Config, snapshots raft.SnapshotStore) (bool, error) {
	list, err := snapshots.List()
	if err != nil {
		return false, fmt.Errorf("list snapshots: %w", err)
	}
	if len(list) == 0 {
		return false, nil
	}
	_, r, err := snapshots.Open(list[0].ID)
	if err != nil {
		return false, fmt.Errorf("open snapshot %s: %w", list[0].ID, err)
	}
	index, err := cfg.SnapshotIndex(bufio.NewReader(r))
	if err := errors.Join(err, r.Close()); err != nil {
		return false, fmt.Errorf("read snapshot %s: %w", list[0].ID, err)
	}
	return index > cfg.Applied, nil
}

// bootstrap makes this node a cluster of one, once: never where there is raft
// state already.
func bootstrap(cfg Config, conf *raft.Config, store *wal.WAL, snapshots raft.SnapshotStore, transport raft.Transport) error {
	if cfg.BootstrapExpect != 1 {
		return nil
	}
	has, err := raft.HasExistingState(store, store, snapshots)
	if err != nil || has {
		return err
	}
	self := raft.Server{ID: conf.LocalID, Address: transport.LocalAddr()}
	err = raft.BootstrapCluster(conf, store, store, snapshots, transport, raft.Configuration{Servers: []raft.Server{self}})
	if err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// startAlone lets the only voter be elected at once: it has nobody to hear from.
// Raft starts an election on a follower when its heartbeat timeout is shortened, if
// there was no contact within it. So the timeouts can be those that several servers
// need.
func (n *Node) startAlone(id string) error {
	f := n.GetConfiguration()
	if err := f.Error(); err != nil {
		return err
	}
	servers := f.Configuration().Servers
	if len(servers) != 1 {
		return nil
	}
	if only := string(servers[0].ID); only != id {
		return fmt.Errorf("it belongs to the server %q, and this one is %q: a server keeps its name", only, id)
	}
	conf := n.ReloadableConfig()
	conf.HeartbeatTimeout, conf.ElectionTimeout = heartbeat, heartbeat
	return n.ReloadConfig(conf)
}

// SnapshotIndex is the raft index of the newest snapshot; 0 without one.
func (n *Node) SnapshotIndex() uint64 {
	index, err := strconv.ParseUint(n.Stats()["last_snapshot_index"], 10, 64)
	if err != nil {
		return 0
	}
	return index
}

// Close stops raft and closes its log. All calls that wait for raft end.
func (n *Node) Close() error {
	n.closing.Do(func() {
		if n.Raft != nil {
			n.closeErr = n.Shutdown().Error()
		}
		if n.transport != nil {
			n.closeErr = errors.Join(n.closeErr, n.transport.Close())
		}
		if n.log != nil {
			n.closeErr = errors.Join(n.closeErr, n.log.Close())
		}
	})
	if n.closeErr != nil {
		return fmt.Errorf("close raft: %w", n.closeErr)
	}
	return nil
}
