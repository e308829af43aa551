package state

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/pb"
	"github.com/dgraph-io/ristretto/v2/z"
)

// tables fills an empty Badger with keys that come in order. Its tables are written as they stay:
// through its memtables each key would be written about five times.
type tables struct {
	to       *badger.StreamWriter
	order    order
	buffer   *z.Buffer
	finished bool
}

const (
	// tableBatch is how much is handed to Badger at once, in bytes.
	tableBatch = 256 << 10
	// fillVersion is Badger's version of all keys of a generation that was filled.
	fillVersion = 1
)

// filling are the options with which Badger is filled. It makes the tables of the last level,
// where all of them go, 32 times as big as the first level's, and has up to 17 under way, each with a buffer
// of twice its size. All of the first level's size they are 68 MiB at most.
func filling(options badger.Options) badger.Options {
	options.TableSizeMultiplier = 1
	return options
}

// newTables begins to fill an empty Badger. It takes no other writes until close.
func newTables(db *badger.DB) (*tables, error) {
	t := &tables{to: db.NewStreamWriter(), buffer: z.NewBuffer(2*tableBatch, "restore")}
	if err := t.to.Prepare(); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// add takes the next key, and copies its value. ErrBadSnapshot: it is not in order, and Badger
// would end the process.
func (t *tables) add(key string, value []byte) error {
	before := t.order.streams()
	if err := t.order.next(key); err != nil {
		return err
	}
	stream := t.order.streams()
	if before > 0 && stream > before {
		badger.KVToBuffer(&pb.KV{StreamId: before, StreamDone: true}, t.buffer)
	}
	badger.KVToBuffer(&pb.KV{Key: []byte(key), Value: value, Version: fillVersion, StreamId: stream}, t.buffer)
	if t.buffer.LenNoPadding() < tableBatch {
		return nil
	}
	return t.pass()
}

func (t *tables) pass() error {
	err := t.to.Write(t.buffer)
	t.buffer.Reset()
	return err
}

// finish writes what is left.
func (t *tables) finish() error {
	t.finished = true
	return errors.Join(t.pass(), t.to.Flush())
}

// close stops the filling where it has not come to its end. Badger lets go of a table that it has begun,
// with its goroutines, only when it writes it.
func (t *tables) close() error {
	var err error
	if !t.finished {
		err = t.to.Flush()
	}
	t.to.Cancel()
	return errors.Join(err, t.buffer.Release())
}

// order is that in which keys come: those with the same prefix (up to the first '/') one after the
// other, sorted.
type order struct {
	prefixes map[string]bool // so far
	prefix   string          // of last
	last     string
}

// next checks the next key. The error is ErrBadSnapshot.
func (o *order) next(key string) error {
	prefix, _, _ := strings.Cut(key, "/")
	if prefix == o.prefix && key <= o.last || prefix != o.prefix && o.prefixes[prefix] {
		return fmt.Errorf("%w: the key %q comes after %q", ErrBadSnapshot, key, o.last)
	}
	if o.prefixes == nil {
		o.prefixes = map[string]bool{}
	}
	o.prefixes[prefix], o.prefix, o.last = true, prefix, key
	return nil
}

// streams is how many prefixes there were so far, which is the number of Badger's stream for the last.
func (o *order) streams() uint32 { return uint32(len(o.prefixes)) }
