package state

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/dgraph-io/badger/v4"
)

// ReadTx is one snapshot of the ledger. All that is read through it belongs
// together. It may be used by one goroutine, and not after the function that
// it was given to has returned.
type ReadTx struct {
	txn *badger.Txn
}

// Index is the raft index of the last entry that this snapshot has.
func (tx *ReadTx) Index() (uint64, error) {
	data, err := tx.get(string(appliedKey))
	if err != nil || data == nil {
		return 0, err
	}
	if len(data) != 8 {
		return 0, fault("applied index has %d bytes", len(data))
	}
	return binary.BigEndian.Uint64(data), nil
}

// get reads a value; nil where there is none.
func (tx *ReadTx) get(key string) ([]byte, error) {
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

// read reads a record; found is false where there is none.
func read[T any](tx *ReadTx, key string) (v T, found bool, err error) {
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

// span is a range of keys: those that begin with base and sub, after the key of
// base and after, at most limit of them (0: all).
type span struct {
	base, sub string
	after     string // empty: from the start
	limit     int
}

// keys lists the keys of a span without its base.
func (tx *ReadTx) keys(s span) ([]string, error) {
	var found []string
	err := tx.scan(s, false, func(key string, _ []byte) error {
		found = append(found, key)
		return nil
	})
	return found, err
}

// records reads all records of a span.
func records[T any](tx *ReadTx, s span) ([]T, error) {
	var found []T
	err := tx.scan(s, true, func(key string, value []byte) error {
		v, err := decode[T](value)
		if err != nil {
			return fault("read %q: %w", s.base+key, err)
		}
		found = append(found, v)
		return nil
	})
	return found, err
}

// indexed reads the records that an index's keys lead to. primary makes the
// record's key out of the part of the index's key after its base.
func indexed[T any](tx *ReadTx, s span, primary func(part string) string, get func(*ReadTx, string) (T, bool, error)) ([]T, error) {
	parts, err := tx.keys(s)
	if err != nil {
		return nil, err
	}
	found := make([]T, 0, len(parts))
	for _, part := range parts {
		v, ok, err := get(tx, primary(part))
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

// any says whether a key begins with the prefix.
func (tx *ReadTx) any(prefix string) (bool, error) {
	keys, err := tx.keys(span{base: prefix, limit: 1})
	return len(keys) > 0, err
}

// scan calls fn for each key of a span, without its base, in order. The value is
// valid during the call only, and nil unless asked for. Badger allows one
// iterator at a time in a writing transaction, so fn must not read.
func (tx *ReadTx) scan(s span, values bool, fn func(key string, value []byte) error) error {
	prefix := []byte(s.base + s.sub)
	it := tx.txn.NewIterator(badger.IteratorOptions{
		Prefix:         prefix,
		PrefetchValues: values && s.limit != 1,
		PrefetchSize:   64,
	})
	defer it.Close()
	start := prefix
	if s.after != "" {
		start = []byte(s.base + s.after + "\x00")
	}
	for it.Seek(start); it.ValidForPrefix(prefix); it.Next() {
		item := it.Item()
		var value []byte
		if values {
			err := item.Value(func(v []byte) error { value = v; return nil })
			if err != nil {
				return fault("read %q: %w", item.Key(), err)
			}
		}
		if err := fn(string(item.Key()[len(s.base):]), value); err != nil {
			return err
		}
		if s.limit--; s.limit == 0 {
			return nil
		}
	}
	return nil
}

// writeTx is the transaction of one or more log entries. It reads its own writes.
type writeTx struct {
	ReadTx
	index  uint64 // of the entry being applied
	topics map[Topic]struct{}
	pruned *string // the last index key of what is not kept any more; see prune
	// bytes and writes are what the transaction holds, to end it before it is
	// more than Badger takes.
	bytes, writes int
}

func (tx *writeTx) put(key string, value []byte) error {
	if err := tx.txn.Set([]byte(key), value); err != nil {
		return fault("put %q: %w", key, err)
	}
	tx.writes++
	tx.bytes += len(key) + len(value)
	return nil
}

func (tx *writeTx) delete(key string) error {
	if err := tx.txn.Delete([]byte(key)); err != nil {
		return fault("delete %q: %w", key, err)
	}
	tx.writes++
	tx.bytes += len(key)
	return nil
}

// write stores a record under its key and moves its index keys from what they
// were to what they are; deleting is writing nothing.
func write[T any](tx *writeTx, key string, v *T, before, now []string) error {
	if v == nil {
		if err := tx.delete(key); err != nil {
			return err
		}
	} else {
		data, err := encode(*v)
		if err != nil {
			return fault("put %q: %w", key, err)
		}
		if err := tx.put(key, data); err != nil {
			return err
		}
	}
	return tx.reindex(before, now)
}

func (tx *writeTx) reindex(before, now []string) error {
	for _, key := range before {
		if !slices.Contains(now, key) {
			if err := tx.delete(key); err != nil {
				return err
			}
		}
	}
	for _, key := range now {
		if !slices.Contains(before, key) {
			if err := tx.put(key, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func (tx *writeTx) setApplied(index uint64) error {
	return tx.put(string(appliedKey), binary.BigEndian.AppendUint64(nil, index))
}

func (tx *writeTx) touch(topics ...Topic) {
	for _, t := range topics {
		tx.topics[t] = struct{}{}
	}
}
