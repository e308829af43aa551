package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/internal/errcode"
)

// ErrClosed is returned by every call after Close.
var ErrClosed = errors.New("the journal is closed")

// Journal is safe for concurrent use.
type Journal struct {
	db  *badger.DB
	dir string
}

// Open opens the journal in dir and makes it (0700) where there is none. A
// journal is one process's: a second Open fails while the first is open. On a disk
// that is nearly full it fails with ErrDiskFull.
func Open(dir string, log hclog.Logger) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the journal's directory: %w", err)
	}
	if err := needSpace(dir); err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	// A journal holds a few kilobytes for each workload; the defaults are made for
	// gigabytes and would take most of the host's memory.
	opts := badger.DefaultOptions(dir).
		WithLogger(badgerLog{log}).
		WithMetricsEnabled(false).
		WithCompression(options.None).
		WithMemTableSize(1 << 20).
		WithValueThreshold(64 << 10).
		WithNumMemtables(2).
		WithBlockCacheSize(0).
		WithIndexCacheSize(1 << 20).
		WithValueLogFileSize(16 << 20).
		WithNumCompactors(2).
		WithCompactL0OnClose(true)
	db, err := badger.Open(opts) // its error says so when another process has it open
	if err != nil {
		return nil, fmt.Errorf("open the journal in %s: %w", dir, err)
	}
	return &Journal{db: db, dir: dir}, nil
}

// Close waits for writes under way. It may be called more than once. On a disk that
// is nearly full it leaves the files as the end of the process would: what Update
// wrote is in them.
func (j *Journal) Close() error {
	if j.db.IsClosed() {
		return nil
	}
	if err := needSpace(j.dir); err != nil {
		return fmt.Errorf("close the journal: %w", err)
	}
	if err := j.db.Close(); err != nil {
		return fmt.Errorf("close the journal: %w", err)
	}
	return nil
}

// Update runs fn in one transaction and commits it when fn returns nil; then it
// survives the death of this process. A conflict with another Update is repeated, so
// fn may run more than once. On a disk that is nearly full it fails with ErrDiskFull
// and writes nothing.
func (j *Journal) Update(fn func(tx *Tx) error) error {
	if j.db.IsClosed() {
		return ErrClosed
	}
	if err := needSpace(j.dir); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	for {
		err := j.db.Update(func(txn *badger.Txn) error { return fn(&Tx{txn}) })
		if errors.Is(err, badger.ErrConflict) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write the journal: %w", err)
		}
		return nil
	}
}

// View runs fn on one snapshot.
func (j *Journal) View(fn func(tx *Tx) error) error {
	if j.db.IsClosed() {
		return ErrClosed
	}
	if err := j.db.View(func(txn *badger.Txn) error { return fn(&Tx{txn}) }); err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	return nil
}

// Tx is a transaction; it ends with the function that it was given to.
type Tx struct{ txn *badger.Txn }

// Bucket is one kind of record: V is stored as JSON under a key of the owner's
// choice. Its name must not hold a zero byte and must never change.
type Bucket[V any] string

// Put writes one record.
func (b Bucket[V]) Put(tx *Tx, key string, v *V) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s %q: %w", b, key, err)
	}
	return tx.txn.Set(b.key(key), raw)
}

// Get reads one record; it is nil where there is none.
func (b Bucket[V]) Get(tx *Tx, key string) (*V, error) {
	item, err := tx.txn.Get(b.key(key))
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %q: %w", b, key, err)
	}
	return b.decode(key, item)
}

// Delete forgets one record; there need be none.
func (b Bucket[V]) Delete(tx *Tx, key string) error { return tx.txn.Delete(b.key(key)) }

// Each calls fn with every record in the order of the keys.
func (b Bucket[V]) Each(tx *Tx, fn func(key string, v *V) error) error {
	prefix := b.key("")
	it := tx.txn.NewIterator(badger.IteratorOptions{Prefix: prefix, PrefetchValues: true, PrefetchSize: 100})
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		key := string(it.Item().Key()[len(prefix):])
		v, err := b.decode(key, it.Item())
		if err != nil {
			return err
		}
		if err := fn(key, v); err != nil {
			return err
		}
	}
	return nil
}

func (b Bucket[V]) decode(key string, item *badger.Item) (*V, error) {
	v := new(V)
	if err := item.Value(func(raw []byte) error { return json.Unmarshal(raw, v) }); err != nil {
		return nil, fmt.Errorf("decode %s %q: %w", b, key, err)
	}
	return v, nil
}

func (b Bucket[V]) key(key string) []byte { return []byte(string(b) + "\x00" + key) }

// badgerLog passes on what an operator should know; Badger's information lines
// are about its own life.
type badgerLog struct{ log hclog.Logger }

func (l badgerLog) Errorf(f string, a ...any)   { l.log.Error(fmt.Sprintf(f, a...)) }
func (l badgerLog) Warningf(f string, a ...any) { l.log.Warn(fmt.Sprintf(f, a...)) }
func (l badgerLog) Infof(f string, a ...any)    { l.log.Trace(fmt.Sprintf(f, a...)) }
func (l badgerLog) Debugf(f string, a ...any)   { l.log.Trace(fmt.Sprintf(f, a...)) }

// ErrDiskFull says that the journal's disk is nearly full. Nothing was written.
var ErrDiskFull = errcode.ResourceExhausted.New("the journal's disk is nearly full")

// needed is the free space, in bytes, below which nothing is written. Badger writes
// through memory maps of sparse files: on a full disk it would not fail, but die of
// SIGBUS with the whole host. It is what the memtables and a compaction can take.
const needed = 16 << 20

// needSpace refuses with ErrDiskFull.
func needSpace(dir string) error {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return fmt.Errorf("free space of the journal's disk: statfs %s: %w", dir, err)
	}
	if free := s.Bavail * uint64(s.Bsize); free < needed {
		return fmt.Errorf("%w: %s has %d MiB left, and this needs %d MiB", ErrDiskFull, dir, free>>20, uint64(needed)>>20)
	}
	return nil
}
