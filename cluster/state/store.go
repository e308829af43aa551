package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/badgerfiles"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/compaction"
)

// Store is the ledger on this server's disk.
type Store struct {
	dir  string
	key  []byte // empty: the ledger is not encrypted
	log  hclog.Logger
	lock *os.File // of the directory; nil: closed

	mu     sync.Mutex
	gen    *generation // nil: closed
	number int         // of gen

	writing  sync.Mutex            // one writer: the log; held while the disk is written
	fault    atomic.Pointer[error] // set while applying; Err is asked while the disk hangs
	pruned   pruned                // guarded by writing
	applied  atomic.Uint64
	watchers watchers
	changes  changes
}

// generation is one Badger directory. A restore makes the next one; the old one is deleted after its last reader.
type generation struct {
	db        *badger.DB
	compactor *compaction.Compactor
	dir       string
	readers   sync.WaitGroup

	mu   sync.Mutex
	last *shared // the snapshot after the last commit
}

// shared is a snapshot that all readers between two commits share. It is made after each commit, because a new one of
// Badger waits for commits that are under way, and a disk that hangs does not end them.
type shared struct {
	txn     *badger.Txn
	holders int // its readers, and the generation while it is the last; guarded by the generation's mu
}

// committed lets new readers see what was committed.
func (g *generation) committed() {
	next := &shared{txn: g.db.NewTransaction(false), holders: 1}
	g.mu.Lock()
	old := g.last
	g.last = next
	g.mu.Unlock()
	if old != nil {
		g.leave(old)
	}
}

// enter returns the last snapshot, which stays open until leave.
func (g *generation) enter() *shared {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last.holders++
	return g.last
}

func (g *generation) leave(s *shared) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.holders--; s.holders == 0 {
		s.txn.Discard()
	}
}

// close closes the database, after its last reader.
func (g *generation) close() error {
	g.readers.Wait()
	g.compactor.Close()
	g.leave(g.last)
	return g.db.Close()
}

// Open opens the ledger in a directory, or creates an empty one. If the machine crashed while the ledger was open,
// it is discarded: AppliedIndex is then 0, and raft fills the ledger again. So is a ledger with a damaged file,
// and a plain one when a key is given. Another key is ErrWrongKey.
func Open(dir string, log hclog.Logger, options ...Option) (*Store, error) {
	if log == nil {
		log = hclog.NewNullLogger()
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	s := &Store{dir: dir, log: log, lock: lock}
	for _, option := range options {
		option(s)
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open the ledger in %s: %w", dir, err), s.Close())
	}
	return s, nil
}

func (s *Store) open() error {
	lost, err := markOpen(s.dir)
	if err != nil {
		return err
	}
	if lost {
		s.log.Warn("the ledger is rebuilt from the raft log: the machine went down without closing it, or another version of "+
			"the program wrote it", "dir", s.dir)
	}
	if lost, err = settleKey(s.dir, s.key); err != nil {
		return err
	}
	if lost {
		s.log.Warn("the ledger was not encrypted: it is rebuilt from the raft log", "dir", s.dir)
	}
	if s.gen, err = s.openCurrent(); err != nil {
		return err
	}
	if err := takeBallast(s.dir); err != nil {
		return err
	}
	return s.View(func(tx *ReadTx) error {
		index, err := tx.Index()
		s.applied.Store(index)
		s.changes.reset(index)
		return err
	})
}

// openCurrent opens the generation in use, or an empty one if a file of it is damaged.
func (s *Store) openCurrent() (*generation, error) {
	number, err := currentGeneration(s.dir)
	if err != nil {
		return nil, err
	}
	g, err := s.openGeneration(number)
	s.number = number
	var damage *badgerfiles.Damage
	if !errors.As(err, &damage) {
		return g, err
	}
	s.log.Error("a file of the ledger is damaged: the ledger is rebuilt from the raft log", "file", damage.File,
		"error", damage.Err)
	if err := forget(s.dir); err != nil {
		return nil, err
	}
	s.number = 0
	return s.openGeneration(0)
}

func (s *Store) openGeneration(number int) (*generation, error) {
	dir := filepath.Join(s.dir, generationName(number))
	// Raft brings an older ledger up to date, but not one whose middle is lost.
	if err := badgerfiles.CheckMemtables(dir); err != nil {
		return nil, err
	}
	db, err := badgerfiles.Open(compaction.Options(badgerOptions(dir, s.key, s.log)))
	if err == nil {
		g := &generation{db: db, compactor: compaction.Follow(db, s.log), dir: dir}
		g.committed()
		return g, nil
	}
	if errors.As(err, new(*badgerfiles.Damage)) {
		return nil, err
	}
	return nil, fmt.Errorf("open %s: %w (the raft log beside it has everything in it: "+
		"it may be removed while the host is down)", dir, err)
}

// badgerOptions keep Badger small: the ledger is read through the page cache. Values are in the LSM tree, so the
// value log stays empty and needs no garbage collection. There is one writer, so conflict detection is off.
func badgerOptions(dir string, key []byte, log hclog.Logger) badger.Options {
	options := badger.DefaultOptions(dir).
		WithLogger(badgerLogger{log}).
		WithMemTableSize(4 << 20).
		WithNumMemtables(2).
		WithBaseTableSize(2 << 20).
		WithValueThreshold(512 << 10).
		WithValueLogFileSize(1 << 20).
		WithCompression(options.None).
		WithBlockCacheSize(0).
		WithIndexCacheSize(0).
		WithNumCompactors(2).
		WithNumVersionsToKeep(1).
		WithDetectConflicts(false).
		WithMetricsEnabled(false).
		WithSyncWrites(false)
	if len(key) > 0 {
		// Decrypted data is not in the page cache.
		options = options.WithEncryptionKey(key).WithIndexCacheSize(encryptedCache).WithBlockCacheSize(encryptedCache)
	}
	return options
}

// encryptedCache bounds each of the two caches of an encrypted ledger, in bytes.
const encryptedCache = 8 << 20

// AppliedIndex returns the raft index of the last entry in the ledger.
func (s *Store) AppliedIndex() uint64 { return s.applied.Load() }

// Err returns the fault for which the store accepts no more entries, or nil.
func (s *Store) Err() error {
	if fault := s.fault.Load(); fault != nil {
		return *fault
	}
	return nil
}

// View calls fn with one snapshot of the ledger.
func (s *Store) View(fn func(*ReadTx) error) error {
	g, release, err := s.acquire()
	if err != nil {
		return err
	}
	defer release()
	snapshot := g.enter()
	defer g.leave(snapshot)
	return fn(newReadTx(snapshot.txn))
}

// Watch returns a channel that is closed by the next change of one of the topics, when ctx ends, and when the
// store is closed. Get the channel, then read, then wait, so that no change is missed. A caller that stops waiting
// must end ctx.
func (s *Store) Watch(ctx context.Context, topics ...Topic) <-chan struct{} {
	return s.watchers.watch(ctx, topics)
}

// Size returns the disk space that the ledger takes, in bytes. Its files may be longer: they have holes.
func (s *Store) Size() int64 {
	g, release, err := s.acquire()
	if err != nil {
		return 0
	}
	defer release()
	files, err := filepath.Glob(filepath.Join(g.dir, "*"))
	if err != nil {
		return 0
	}
	var size int64
	for _, f := range files {
		var stat syscall.Stat_t
		if err := syscall.Stat(f, &stat); err == nil { // the file may be gone meanwhile
			size += stat.Blocks * 512
		}
	}
	return size
}

// Close waits for readers and closes the store. It may be called again.
func (s *Store) Close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.lock == nil {
		return nil
	}
	s.fault.Store(&command.ErrClosed)
	s.mu.Lock()
	g := s.gen
	s.gen = nil
	s.mu.Unlock()
	err := dropBallast(s.dir)
	if g != nil {
		if err = errors.Join(err, g.close()); err == nil {
			err = markClosed(s.dir)
		}
	}
	s.watchers.publishAll()
	err = errors.Join(err, s.lock.Close())
	s.lock = nil
	if err != nil {
		return fmt.Errorf("close the ledger: %w", err)
	}
	return nil
}

// acquire keeps the current generation open until release.
func (s *Store) acquire() (*generation, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gen == nil {
		return nil, nil, command.ErrClosed
	}
	s.gen.readers.Add(1)
	return s.gen, s.gen.readers.Done, nil
}

// badgerLogger passes on Badger's messages; info messages are logged as traces, as they help a developer only.
type badgerLogger struct{ log hclog.Logger }

func (l badgerLogger) Errorf(f string, a ...any)   { l.log.Error(fmt.Sprintf(f, a...)) }
func (l badgerLogger) Warningf(f string, a ...any) { l.log.Warn(fmt.Sprintf(f, a...)) }
func (l badgerLogger) Infof(f string, a ...any)    { l.log.Trace(fmt.Sprintf(f, a...)) }
func (l badgerLogger) Debugf(f string, a ...any)   { l.log.Trace(fmt.Sprintf(f, a...)) }
