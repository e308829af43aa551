// Package raftnode runs hashicorp/raft for this server: log and votes in raft-wal, snapshots in files, timings,
// bootstrap, and membership. It does not know what the log's entries mean.
package raftnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/discovery"
)

// Config is the configuration of a raft node.
type Config struct {
	// Dir is the node's own directory: wal/ and snapshots/ are made in it.
	Dir string
	// ID is the server's name, which never changes.
	ID string
	// BootstrapExpect is how many servers form the cluster when none has raft state. With 0 this server forms
	// none: it waits to be added.
	BootstrapExpect int
	// ElectionTimeout is how long servers wait for a leader: for its next heartbeat, and for the end of an election. A
	// leader that no majority answers for so long stops leading. 0: DefaultElectionTimeout.
	ElectionTimeout time.Duration
	// Streams connect to the other servers, and Members says where they are. Both nil: there are no others.
	// Streams are closed with the node.
	Streams Streams
	Members Members
	// Vet returns why a server that gossip knows is not the one of that name; nil: all are.
	Vet func(discovery.Member) error
	// Known returns the address that the ledger has for a server, as that server has registered it; empty: none. nil:
	// there is none for any.
	Known func(server string) (address string)
	// Autopilot returns the current settings by which the leader manages the other servers.
	Autopilot func() claim.Autopilot
	// Report describes the ledger to other servers; nil: there is none.
	Report func() Report
	// Room returns why the log must not grow now; nil: it always may.
	Room func() error
	// Late is called, in a goroutine of its own, when the log's disk hangs (Node.Late); nil: nobody is interested.
	Late func()
	FSM  raft.BatchingFSM
	// Applied is the index that the FSM has on its own, and SnapshotIndex reads that index from a snapshot: a
	// snapshot is restored at the start only if it is ahead.
	Applied       uint64
	SnapshotIndex func(io.Reader) (uint64, error)
	Logger        hclog.Logger
}

// Streams are the connections between servers.
type Streams interface {
	net.Listener
	// Dial connects to the server of a name at an address. It fails if another one answers there.
	Dial(name, address string, timeout time.Duration) (net.Conn, error)
}

// Members lists the agents of the cluster.
type Members interface {
	Members() []discovery.Member
	// Changed is closed by the next change.
	Changed() <-chan struct{}
	// ForceLeave makes the others treat a failed agent as one that has left.
	ForceLeave(name string, prune bool) error
}

// DefaultElectionTimeout is the usual ElectionTimeout.
const DefaultElectionTimeout = 500 * time.Millisecond

// Timings and sizes of raft.
const (
	// maxAppend bounds a group commit: one fsync of the log, one transaction.
	maxAppend = 256
	// cachedEntries is how many of the log's last entries stay in memory, for the other servers and for the FSM.
	cachedEntries = maxAppend
	// segmentSize is the size of the log's files, which are allocated whole.
	segmentSize = 8 << 20
	// How often raft checks whether to take a snapshot, after how many entries it takes one, and how many entries it keeps
	// behind it for servers that lag. A start reads all entries after the snapshot, also entries that the FSM has: about
	// 20 µs each.
	snapshotInterval  = time.Minute
	snapshotThreshold = 4 << 10
	trailingLogs      = 8 << 10
	snapshotsKept     = 2
	// Idle connections kept per server, and the timeout of a call.
	connections = 3
	callTimeout = 10 * time.Second
)

// Node is a running raft node.
type Node struct {
	*raft.Raft
	// Leadership reports each change: true when this node has become the leader.
	Leadership <-chan bool

	cfg       Config
	logger    hclog.Logger
	log       *wal.WAL
	transport interface {
		raft.Transport
		raft.WithClose
	}
	network    *raft.NetworkTransport // and streams: nil without other servers
	streams    *streams
	forming    *forming
	abstention *abstention
	leaving    atomic.Bool
	// confirmations are the answers of the other servers to this one as the leader.
	confirmations *confirmations
	writes        *writes
	withheld      atomic.Bool // see Resign

	opened   chan struct{} // closed when raft runs
	stop     context.CancelFunc
	running  sync.WaitGroup
	closing  sync.Once
	closeErr error
}

// Open starts raft and, if needed, forms the cluster in the background. It returns before there is a leader.
func Open(cfg Config) (n *Node, err error) {
	logger := cfg.Logger
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	walDir := filepath.Join(cfg.Dir, "wal")
	if err := os.MkdirAll(walDir, 0o700); err != nil {
		return nil, fmt.Errorf("open raft: %w", err)
	}
	if cfg.Late == nil {
		cfg.Late = func() {}
	}
	n = &Node{cfg: cfg, logger: logger, opened: make(chan struct{}), confirmations: &confirmations{}}
	n.writes = newWrites(cmp.Or(cfg.ElectionTimeout, DefaultElectionTimeout), cfg.Late)
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open raft in %s: %w", cfg.Dir, err), n.Close())
		}
	}()
	if n.forming, err = newForming(n, logger.Named("forming")); err != nil {
		return n, err
	}
	if n.abstention, err = readAbstention(cfg.Dir); err != nil {
		return n, err
	}
	files, err := raft.NewFileSnapshotStoreWithLogger(cfg.Dir, snapshotsKept, quieter(logger.Named("snapshots"), cfg))
	if err != nil {
		return n, fmt.Errorf("snapshots: %w", err)
	}
	snapshots := &snapshots{files, make(chan struct{}, 1)}
	if err := n.openLog(walDir, snapshots); err != nil {
		return n, fmt.Errorf("log: %w", err)
	}
	leadership := make(chan bool, 8)
	n.Leadership = leadership
	conf := config(cfg, logger, leadership)
	if err := n.replaceSnapshot(snapshots); err != nil {
		return n, err
	}
	snapshot, err := n.snapshotIndex(snapshots)
	if err != nil {
		return n, err
	}
	if err := n.checkEnd(snapshots, snapshot); err != nil {
		return n, err
	}
	n.connect(ctx, logger)
	applied, err := recoverPeers(cfg, conf, n.log, snapshots, n.transport, logger)
	if err == nil && applied { // the operator vouches that no server has more
		err = n.abstention.end()
		if err == nil {
			snapshot, err = n.snapshotIndex(snapshots) // recovery takes one
		}
	}
	if err != nil {
		return n, err
	}
	conf.NoSnapshotRestoreOnStart = snapshot <= cfg.Applied
	if err := bootstrap(cfg, conf, n.log, snapshots, n.transport); err != nil {
		return n, err
	}
	if err := raiseTerm(cfg.Dir, n.log); err != nil {
		return n, err
	}
	entries, err := raft.NewLogCache(cachedEntries, boundedLog{n.log, cfg.Room, n.writes})
	if err != nil {
		return n, err
	}
	terms := stable{n.log, n.writes, logger}
	if n.Raft, err = raft.NewRaft(conf, cfg.FSM, entries, terms, snapshots, n.transport); err != nil {
		return n, err
	}
	close(n.opened)
	n.running.Go(func() { n.renewSnapshot(ctx, snapshots) })
	if err := n.startAlone(); err != nil {
		return n, err
	}
	if n.streams != nil {
		n.running.Go(func() { n.forming.run(ctx) })
		n.running.Go(func() { n.catchUp(ctx) })
	}
	return n, nil
}

// connect makes the transport to the other servers, or one without connections.
func (n *Node) connect(ctx context.Context, logger hclog.Logger) {
	if n.cfg.Streams == nil {
		_, n.transport = raft.NewInmemTransport(raft.ServerAddress(n.cfg.ID))
		return
	}
	log := quieter(logger.Named("transport"), n.cfg)
	n.streams = newStreams(n.cfg, log, n.reply)
	n.network = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: n.streams, MaxPool: connections, Timeout: callTimeout, Logger: log, MsgpackUseNewTimeFormat: true,
	})
	confirming := &confirmingTransport{n.network, n.confirmations, &n.withheld}
	n.transport = confirming
	if n.abstention.active() {
		t := &abstainingTransport{confirming, n.abstention, make(chan raft.RPC)}
		n.running.Go(func() { t.run(ctx) })
		n.transport = t
	}
}

func config(cfg Config, logger hclog.Logger, leadership chan<- bool) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(cfg.ID)
	conf.Logger = quieter(logger, cfg)
	conf.NotifyCh = leadership
	timeout := cmp.Or(cfg.ElectionTimeout, DefaultElectionTimeout)
	if cfg.Streams == nil {
		// A leader wakes up at the end of each lease, here for nothing. A server whose log could not be written leads
		// again after one to two timeouts.
		timeout *= 10
	}
	conf.HeartbeatTimeout, conf.ElectionTimeout = timeout, timeout
	conf.LeaderLeaseTimeout = timeout - time.Millisecond // startAlone shortens the first
	conf.MaxAppendEntries = maxAppend
	conf.BatchApplyCh = true
	conf.SnapshotInterval = snapshotInterval
	conf.SnapshotThreshold = snapshotThreshold
	conf.TrailingLogs = trailingLogs
	conf.NoLegacyTelemetry = true
	return conf
}

// bootstrap makes this node a cluster of one, once: never if there is raft state. A server that can reach others
// looks for them first (forming).
func bootstrap(cfg Config, conf *raft.Config, store *wal.WAL, snapshots raft.SnapshotStore,
	transport raft.Transport,
) error {
	if cfg.BootstrapExpect != 1 || cfg.Streams != nil {
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

// startAlone lets an only voter be elected at once: it has nobody to wait for. A follower checks for a leader when its
// heartbeat timeout is shortened, if only by a millisecond.
func (n *Node) startAlone() error {
	f := n.GetConfiguration()
	if err := f.Error(); err != nil {
		return err
	}
	servers := f.Configuration().Servers
	if len(servers) == 1 && n.streams == nil {
		if only := string(servers[0].ID); only != n.cfg.ID {
			return fmt.Errorf("it belongs to the server %q, and this one is %q: a server cannot change its name", only, n.cfg.ID)
		}
	}
	if len(servers) != 1 || servers[0].ID != raft.ServerID(n.cfg.ID) {
		return nil
	}
	conf := n.ReloadableConfig()
	conf.HeartbeatTimeout -= time.Millisecond
	return n.ReloadConfig(conf)
}

// Close stops raft and closes its log. Calls that wait for raft return.
func (n *Node) Close() error {
	n.closing.Do(func() {
		n.stop()
		n.running.Wait()
		if n.Raft != nil {
			if n.closeErr = n.shutDown(); n.closeErr != nil {
				return // it may still write
			}
		}
		if n.network != nil {
			n.network.CloseStreams()
		}
		if n.transport != nil {
			n.closeErr = errors.Join(n.closeErr, n.transport.Close())
		}
		if n.streams != nil {
			n.closeErr = errors.Join(n.closeErr, n.streams.Close())
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

// quiet is a logger for raft: its info messages become debug messages, and its warnings get the level warn.
type quiet struct {
	hclog.Logger
	warn hclog.Level // the level of raft's warnings
}

// quieter wraps a logger. Raft's warnings are nearly always about another server, so a single server logs them at
// debug level ("heartbeat timeout reached" comes with each of its starts).
func quieter(l hclog.Logger, cfg Config) quiet {
	if cfg.Streams == nil {
		return quiet{l, hclog.Debug}
	}
	return quiet{l, hclog.Warn}
}

func (q quiet) Info(msg string, args ...any)        { q.Debug(msg, args...) }
func (q quiet) Warn(msg string, args ...any)        { q.Log(q.warn, msg, args...) }
func (q quiet) With(args ...any) hclog.Logger       { return quiet{q.Logger.With(args...), q.warn} }
func (q quiet) Named(name string) hclog.Logger      { return quiet{q.Logger.Named(name), q.warn} }
func (q quiet) ResetNamed(name string) hclog.Logger { return quiet{q.Logger.ResetNamed(name), q.warn} }

func (q quiet) StandardLogger(o *hclog.StandardLoggerOptions) *log.Logger {
	return q.Logger.StandardLogger(o)
}
