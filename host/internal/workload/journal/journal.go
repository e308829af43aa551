package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/ristretto/v2/z"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/badgerfiles"
	"github.com/pannier/pannier/cluster/compaction"
	"github.com/pannier/pannier/internal/diskspace"
	"github.com/pannier/pannier/internal/errcode"
)

// ErrClosed is returned by every call after Close.
var ErrClosed = errors.New("the journal is closed")

// Journal is an open journal. It is safe for concurrent use.
type Journal struct {
	db        *badger.DB
	compactor *compaction.Compactor
	dir       string
	log       hclog.Logger

	writing sync.Mutex
	sum     digest // of all records; guarded by writing
	version uint64 // of the last transaction; guarded by writing
	mark    *os.File
}

// Open opens the journal in dir, and creates it (0700) if there is none. Only one process can have it open: a second
// Open fails. If the disk is nearly full the error is ErrDiskFull. A journal that is damaged, or older than it was, is
// set aside: the ledger has the claims of what it knew.
func Open(dir string, log hclog.Logger) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the journal's directory: %w", err)
	}
	if err := needSpace(dir); err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	j, err := open(dir, log)
	var damage *badgerfiles.Damage
	if errors.As(err, &damage) {
		aside := dir + ".damaged"
		log.Error("the journal is damaged and was set aside: what the ledger has for this node is released once nobody "+
			"uses it, and plugins have lost their state", "error", damage, "aside", aside)
		err = errors.Join(os.RemoveAll(aside), os.Rename(dir, aside), os.Mkdir(dir, 0o700), os.RemoveAll(markPath(dir)))
		if err == nil {
			j, err = open(dir, log)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the journal in %s: %w", dir, err)
	}
	return j, nil
}

func open(dir string, log hclog.Logger) (*Journal, error) {
	// A journal has a few kilobytes per workload. Badger's defaults are made for gigabytes and would use most of the
	// host's memory.
	opts := compaction.Options(badger.DefaultOptions(dir)).
		WithLogger(badgerLog{log}).
		WithMetricsEnabled(false).
		WithCompression(options.None).
		WithMemTableSize(1 << 20).
		WithValueThreshold(64 << 10).
		WithNumMemtables(2).
		WithBlockCacheSize(0).
		WithIndexCacheSize(0).
		WithValueLogFileSize(1 << 20). // hardly used: nearly all values are below the threshold
		WithDetectConflicts(false).    // there is one writer
		WithCompactL0OnClose(true)
	db, err := badgerfiles.Open(opts) // the error says if another process has it open
	for try := 0; try < 5 && err != nil && strings.Contains(err.Error(), z.NewFile.Error()); try++ {
		// A process was killed after it had made a file, and before it gave it its size. Badger has done so now.
		db, err = badgerfiles.Open(opts)
	}
	if err != nil {
		return nil, err
	}
	j := &Journal{db: db, dir: dir, log: log}
	if err := j.openMark(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	j.compactor = compaction.Follow(db, log)
	return j, nil
}

// Close waits for running writes. It may be called more than once. If the disk is nearly full it leaves the files as
// they are, with everything that Update has written.
func (j *Journal) Close() error {
	if j.db.IsClosed() {
		return nil
	}
	if err := needSpace(j.dir); err != nil {
		return fmt.Errorf("close the journal: %w", err)
	}
	j.compactor.Close()
	if err := errors.Join(j.db.Close(), j.mark.Close()); err != nil {
		return fmt.Errorf("close the journal: %w", err)
	}
	return nil
}

// Update runs fn in one transaction and commits it if fn returns nil; it then survives the death of this process. One
// runs at a time, so fn must not call Update. If the disk is nearly full it writes nothing and returns ErrDiskFull.
func (j *Journal) Update(fn func(tx *Tx) error) error {
	if j.db.IsClosed() {
		return ErrClosed
	}
	if err := needSpace(j.dir); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	j.writing.Lock()
	defer j.writing.Unlock()
	// A disk that hangs or fails shows it here, in a system call. Badger writes through memory maps, where a thread that
	// waits for the disk stops the whole program at Go's next garbage collection.
	if err := j.writeMark(); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	sum := j.sum
	err := j.db.Update(func(txn *badger.Txn) error {
		tx := &Tx{txn, sum}
		if err := fn(tx); err != nil {
			return err
		}
		sum = tx.sum
		return txn.Set(sumKey, sum[:])
	})
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	j.sum = sum
	txn := j.db.NewTransaction(false)
	j.version = txn.ReadTs()
	txn.Discard()
	if err := j.writeMark(); err != nil { // what was written counts
		j.log.Warn("the journal's mark cannot be written: a loss of its last records would not be noticed", "error", err)
	}
	j.compactor.Wrote()
	return nil
}

// View runs fn on a snapshot.
func (j *Journal) View(fn func(tx *Tx) error) error {
	if j.db.IsClosed() {
		return ErrClosed
	}
	if err := j.db.View(func(txn *badger.Txn) error { return fn(&Tx{txn: txn}) }); err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	return nil
}

// Tx is a transaction. It is valid until the function that it was passed to returns.
type Tx struct {
	txn *badger.Txn
	sum digest // with what it has written
}

// replace writes a record, or deletes it if value is nil.
func (tx *Tx) replace(key, value []byte) error {
	item, err := tx.txn.Get(key)
	if err == nil {
		err = item.Value(func(before []byte) error { tx.sum.toggle(key, before); return nil })
	}
	if err != nil && !errors.Is(err, badger.ErrKeyNotFound) {
		return err
	}
	if value == nil {
		return tx.txn.Delete(key)
	}
	tx.sum.toggle(key, value)
	return tx.txn.Set(key, value)
}

// Bucket is one kind of record: V is stored as JSON under a key that the owner chooses. Its name must not contain a
// zero byte and must never change.
type Bucket[V any] string

// Put writes one record.
func (b Bucket[V]) Put(tx *Tx, key string, v *V) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s %q: %w", b, key, err)
	}
	return tx.replace(b.key(key), raw)
}

// Get reads one record; nil if there is none.
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

// Delete deletes a record, if there is one.
func (b Bucket[V]) Delete(tx *Tx, key string) error { return tx.replace(b.key(key), nil) }

// Each calls fn for every record, in the order of the keys.
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

// badgerLog forwards Badger's warnings and errors; the rest does not concern an operator.
type badgerLog struct{ log hclog.Logger }

func (l badgerLog) Errorf(f string, a ...any)   { l.log.Error(fmt.Sprintf(f, a...)) }
func (l badgerLog) Warningf(f string, a ...any) { l.log.Warn(fmt.Sprintf(f, a...)) }
func (l badgerLog) Infof(f string, a ...any)    { l.log.Trace(fmt.Sprintf(f, a...)) }
func (l badgerLog) Debugf(f string, a ...any)   { l.log.Trace(fmt.Sprintf(f, a...)) }

// ErrDiskFull means that the journal's disk is nearly full. Nothing was written.
var ErrDiskFull = errcode.ResourceExhausted.New("the journal's disk is nearly full")

// needed is the free space, in bytes, below which nothing is written. Badger writes through memory maps of sparse
// files: on a full disk that would kill the host with SIGBUS instead of failing. It is as much as the memtables and a
// compaction can need.
const needed = 16 << 20

// needSpace returns ErrDiskFull if the disk is nearly full, or has hardly an inode left.
func needSpace(dir string) error {
	lack, err := diskspace.Lack(dir, needed, needed>>20)
	if err == nil && lack != "" {
		err = fmt.Errorf("%w: %s", ErrDiskFull, lack)
	}
	return err
}
