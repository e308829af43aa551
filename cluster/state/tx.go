package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/dgraph-io/badger/v4"

	"github.com/pannier/pannier/cluster/codec"
)

// ReadTx is one snapshot of the ledger: everything read through it is consistent. It may be used by one goroutine,
// until the function that it was passed to returns.
type ReadTx struct {
	*reader
	ACL
	Settings
}

// ACL reads the policies, roles and tokens that protect the API.
type ACL struct{ *reader }

// Settings reads what the ledger has once: the cluster's identity, its keys, and what operators have set.
type Settings struct{ *reader }

func newReadTx(txn *badger.Txn) *ReadTx {
	r := &reader{txn: txn}
	return &ReadTx{r, ACL{r}, Settings{r}}
}

// reader reads keys and values.
type reader struct {
	txn  *badger.Txn
	over pending // overrides what Badger has
}

// Index returns the raft index of the last entry in this snapshot.
func (tx *reader) Index() (uint64, error) {
	data, err := tx.get(string(appliedKey))
	if err != nil || data == nil {
		return 0, err
	}
	if len(data) != 8 {
		return 0, fault("applied index has %d bytes", len(data))
	}
	return binary.BigEndian.Uint64(data), nil
}

// get reads a value; nil: there is none.
func (tx *reader) get(key string) ([]byte, error) {
	if value, ok := tx.over.values[key]; ok {
		return value, nil
	}
	item, err := tx.txn.Get([]byte(key))
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fault("get %q: %w", key, err)
	}
	data, err := item.ValueCopy(nil)
	if err != nil {
		return nil, fault("get %q: %w", key, err)
	}
	if data == nil {
		data = []byte{}
	}
	return data, nil
}

// read reads a record; found is false if there is none.
func read[T any](tx *reader, key string) (v T, found bool, err error) {
	data, err := tx.get(key)
	if err != nil || data == nil {
		return v, false, err
	}
	v, err = decode[T](data)
	if err != nil {
		return v, false, fault("get %q: %w", key, err)
	}
	return v, true, nil
}

// need reads a record. The error is made of format and args if there is none.
func need[T any](tx *reader, key, format string, args ...any) (T, error) {
	v, found, err := read[T](tx, key)
	if err == nil && !found {
		err = fmt.Errorf(format, args...)
	}
	return v, err
}

// span is a range of keys: those with the prefix base and sub, after the key made of base and after, at most limit
// of them (0: all).
type span struct {
	base, sub string
	after     string // empty: from the start
	limit     int
}

// keys lists the keys of a span without its base.
func (tx *reader) keys(s span) ([]string, error) {
	var found []string
	err := tx.scan(s, false, func(key string, _ []byte) error {
		found = append(found, key)
		return nil
	})
	return found, err
}

// records reads all records of a span.
func records[T any](tx *reader, s span) (found []T, err error) {
	err = eachRecord(tx, s, func(v T) error { found = append(found, v); return nil })
	if err != nil {
		return nil, err
	}
	return found, nil
}

// eachRecord calls fn for each record of a span, until fn returns an error.
func eachRecord[T any](tx *reader, s span, fn func(T) error) error {
	return tx.scan(s, true, func(key string, value []byte) error {
		v, err := decode[T](value)
		if err != nil {
			return fault("read %q: %w", s.base+key, err)
		}
		return fn(v)
	})
}

// indexed reads the records that an index leads to. primary makes the record's key from the part of the index key
// after the base.
func indexed[T any](tx *reader, s span, primary func(part string) string) ([]T, error) {
	parts, err := tx.keys(s)
	if err != nil {
		return nil, err
	}
	found := make([]T, 0, len(parts))
	for _, part := range parts {
		v, ok, err := read[T](tx, primary(part))
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fault("index key %q leads to no record", s.base+part)
		}
		found = append(found, v)
	}
	return found, nil
}

// any reports whether there is a key with the prefix.
func (tx *reader) any(prefix string) (bool, error) {
	keys, err := tx.keys(span{base: prefix, limit: 1})
	return len(keys) > 0, err
}

// scan calls fn for each key of a span, without its base, in order. The value is valid during the call only, and
// nil unless values is set. Badger allows one iterator at a time in a writing transaction, so fn must not read or
// write.
func (tx *reader) scan(s span, values bool, fn func(key string, value []byte) error) error {
	prefix := s.base + s.sub
	start := prefix
	if s.after != "" {
		start = s.base + s.after + "\x00"
	}
	it := tx.txn.NewIterator(badger.IteratorOptions{Prefix: []byte(prefix)})
	defer it.Close()
	it.Seek([]byte(start))
	written := tx.over.from(start, prefix)
	for {
		stored := it.Valid()
		if !stored && len(written) == 0 {
			return nil
		}
		var key string
		var value []byte
		var passed bool // this round consumes the stored key
		if stored {
			key = string(it.Item().Key())
		}
		if len(written) > 0 && (!stored || written[0] <= key) {
			passed = stored && written[0] == key
			key, value, written = written[0], tx.over.values[written[0]], written[1:]
			if value == nil { // deleted
				if passed {
					it.Next()
				}
				continue
			}
		} else {
			passed = true
			if values {
				err := it.Item().Value(func(v []byte) error { value = v; return nil })
				if err != nil {
					return fault("read %q: %w", key, err)
				}
			}
		}
		if !values {
			value = nil
		}
		if err := fn(key[len(s.base):], value); err != nil {
			return err
		}
		if s.limit--; s.limit == 0 {
			return nil
		}
		if passed {
			it.Next()
		}
	}
}

// applier applies commands in a transaction. Each part has the commands of one noun; writeTx itself has the commands of
// workloads, their claims and their tokens.
type applier struct {
	*writeTx
	volumeWrites
	nodeWrites
	settingWrites
	aclWrites
}

type (
	volumeWrites  struct{ *writeTx }
	nodeWrites    struct{ *writeTx }
	settingWrites struct{ *writeTx }
	aclWrites     struct{ *writeTx }
)

// writeTx is the transaction of one or more log entries. It reads its own writes.
type writeTx struct {
	*ReadTx
	index  uint64 // of the entry being applied
	term   uint64 // of that entry
	topics map[Topic]struct{}
	// fingerprint is the fingerprint of the StartWorkload being applied, if it has a key.
	fingerprint []byte
	pruned      *pruned // the store's, which outlives the transaction
	// bytes and writes are the size of the transaction, which must end before it exceeds the limit of Badger.
	bytes, writes int
}

// newWriteTx begins a transaction; the caller discards its txn.
func newWriteTx(db *badger.DB) *writeTx {
	return &writeTx{
		ReadTx: newReadTx(db.NewTransaction(true)), topics: map[Topic]struct{}{}, pruned: &pruned{},
	}
}

// writeBytes is what Badger adds to the size of each key and value.
const writeBytes = 12

func (tx *writeTx) put(key string, value []byte) {
	if value == nil {
		value = []byte{}
	}
	tx.over.set(key, value)
	tx.writes++
	tx.bytes += len(key) + len(value) + writeBytes
}

func (tx *writeTx) delete(key string) {
	tx.over.set(key, nil)
	tx.writes++
	tx.bytes += len(key) + writeBytes
}

func (tx *writeTx) commit() error {
	if err := tx.over.store(tx.txn); err != nil {
		return err
	}
	if err := tx.txn.Commit(); err != nil {
		return fault("commit: %w", err)
	}
	return nil
}

// write stores a record, or deletes it if v is nil, and moves its index keys from before to now.
func write[T any](tx *writeTx, key string, v *T, before, now []string) error {
	if v == nil {
		tx.delete(key)
	} else {
		data, err := codec.Marshal(v)
		if err != nil {
			return fault("put %q: %w", key, err)
		}
		tx.put(key, data)
	}
	tx.reindex(before, now)
	return nil
}

func (tx *writeTx) reindex(before, now []string) {
	for _, key := range before {
		if !slices.Contains(now, key) {
			tx.delete(key)
		}
	}
	for _, key := range now {
		if !slices.Contains(before, key) {
			tx.put(key, nil)
		}
	}
}

func (tx *writeTx) setApplied(index uint64) {
	tx.put(string(appliedKey), binary.BigEndian.AppendUint64(nil, index))
}

func (tx *writeTx) touch(topics ...Topic) {
	for _, t := range topics {
		tx.topics[t] = struct{}{}
	}
}

// pending is what a transaction has written so far. Badger's own transactions sort everything that they hold for
// each scan, so that in a batch of many commands a scan would take longer with each command before it.
type pending struct {
	values map[string][]byte // nil: deleted
	keys   []string          // of values, sorted
	undo   []func()          // takes back what was set since begin, last first
}

// begin begins a part of the transaction that rollback takes back.
func (p *pending) begin() { p.undo = p.undo[:0] }

func (p *pending) rollback() {
	for _, undo := range slices.Backward(p.undo) {
		undo()
	}
	p.undo = nil
}

// set records a value, or with nil that the key is deleted.
func (p *pending) set(key string, value []byte) {
	if p.values == nil {
		p.values = map[string][]byte{}
	}
	before, known := p.values[key]
	if !known {
		at := sort.SearchStrings(p.keys, key)
		p.keys = slices.Insert(p.keys, at, key)
	}
	p.values[key] = value
	p.undo = append(p.undo, func() {
		if p.values[key] = before; !known {
			delete(p.values, key)
			p.keys = slices.DeleteFunc(p.keys, func(k string) bool { return k == key })
		}
	})
}

// from returns the keys with the prefix, beginning with start.
func (p *pending) from(start, prefix string) []string {
	keys := p.keys[sort.SearchStrings(p.keys, start):]
	return keys[:sort.Search(len(keys), func(i int) bool { return !strings.HasPrefix(keys[i], prefix) })]
}

// store passes everything to Badger.
func (p *pending) store(txn *badger.Txn) error {
	for _, key := range p.keys {
		var err error
		if value := p.values[key]; value == nil {
			err = txn.Delete([]byte(key))
		} else {
			err = txn.Set([]byte(key), value)
		}
		if err != nil {
			return fault("store %q: %w", key, err)
		}
	}
	return nil
}

// decode decodes a record of the ledger or of a snapshot.
func decode[T any](data []byte) (v T, err error) {
	if err := codec.Unmarshal(data, &v); err != nil {
		return v, fmt.Errorf("read a record: %w", err)
	}
	return v, nil
}

// storeError is a fault of the store itself. It distinguishes a refusal, to which every server comes, from a fault
// of this server.
type storeError struct{ err error }

func (e *storeError) Error() string { return "ledger's store: " + e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

func fault(format string, args ...any) error {
	return &storeError{fmt.Errorf(format, args...)}
}

func isFault(err error) bool {
	var e *storeError
	return errors.As(err, &e)
}
