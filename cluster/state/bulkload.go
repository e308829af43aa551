package state

import (
	"bufio"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/pb"
	"github.com/dgraph-io/ristretto/v2/z"
)

// tables fills an empty Badger with sorted keys. Its tables are written once and in their final form; through
// Badger's memtables each key would be written about five times.
type tables struct {
	to       *badger.StreamWriter
	order    order
	buffer   *z.Buffer
	finished bool
}

const (
	// tableBatch is how much is passed to Badger at once, in bytes.
	tableBatch = 256 << 10
	// fillVersion is Badger's version of all keys in a filled generation.
	fillVersion = 1
)

// filling returns the options with which Badger is filled. It makes tables of the last level, where all of them
// go, 32 times as big as those of the first level, and has up to 17 in progress, each with a buffer of twice its
// size. With equal sizes these buffers take 68 MiB at most.
func filling(options badger.Options) badger.Options {
	options.TableSizeMultiplier = 1
	return options
}

// newTables begins to fill an empty Badger, which accepts no other writes until close.
func newTables(db *badger.DB) (*tables, error) {
	t := &tables{to: db.NewStreamWriter(), buffer: z.NewBuffer(2*tableBatch, "restore")}
	if err := t.to.Prepare(); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// add adds the next key, and copies its value. The error is ErrBadSnapshot if it is not in order: Badger would end
// the process.
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

// finish writes the remaining keys.
func (t *tables) finish() error {
	t.finished = true
	return errors.Join(t.pass(), t.to.Flush())
}

// close ends the filling, also before finish. Badger frees a table that it has begun, and its goroutines, only
// when it writes the table.
func (t *tables) close() error {
	var err error
	if !t.finished {
		err = t.to.Flush()
	}
	t.to.Cancel()
	return errors.Join(err, t.buffer.Release())
}

// order checks the order of keys: those with the same prefix (up to the first '/') are adjacent and sorted.
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

// streams returns the number of prefixes so far, which is the number of Badger's stream for the last one.
func (o *order) streams() uint32 { return uint32(len(o.prefixes)) }

// sorter sorts more keys than fit into memory: runs of runSize bytes are sorted in memory and written to a file,
// and merged at the end.
type sorter struct {
	file  *os.File
	out   *bufio.Writer
	pairs []pair
	size  int // of pairs, in bytes
	end   int64
	runs  []*io.SectionReader
}

// pair is a key and its value.
type pair struct {
	key   string
	value []byte
}

const (
	// runSize is how much is sorted in memory, in bytes.
	runSize = 8 << 20
	// runBuffer is how much of each run is in memory while they are merged, in bytes.
	runBuffer = 16 << 10
)

// newSorter makes a sorter with an unlinked file in a directory: nothing is left of it after the process.
func newSorter(dir string) (*sorter, error) {
	f, err := os.CreateTemp(dir, "sort-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &sorter{file: f, out: bufio.NewWriterSize(f, 64<<10)}, nil
}

func (s *sorter) close() error { return s.file.Close() }

// add adds a key, in any order, and keeps its value.
func (s *sorter) add(p pair) error {
	s.pairs = append(s.pairs, p)
	s.size += len(p.key) + len(p.value)
	if s.size < runSize {
		return nil
	}
	return s.endRun()
}

// endRun sorts the run in memory and writes it out: the lengths of a key and of its value (uvarints), then both.
func (s *sorter) endRun() error {
	slices.SortStableFunc(s.pairs, func(a, b pair) int { return strings.Compare(a.key, b.key) })
	begin := s.end
	var frame []byte
	for _, p := range s.pairs {
		frame = binary.AppendUvarint(frame[:0], uint64(len(p.key)))
		frame = binary.AppendUvarint(frame, uint64(len(p.value)))
		frame = append(append(frame, p.key...), p.value...)
		if _, err := s.out.Write(frame); err != nil {
			return err
		}
		s.end += int64(len(frame))
	}
	clear(s.pairs)
	s.pairs, s.size = s.pairs[:0], 0
	s.runs = append(s.runs, io.NewSectionReader(s.file, begin, s.end-begin))
	return s.out.Flush()
}

// each calls fn for each key in order, once. The value is valid during the call only.
func (s *sorter) each(fn func(key string, value []byte) error) error {
	if err := s.endRun(); err != nil {
		return err
	}
	var left runs
	for _, section := range s.runs {
		r := &run{in: bufio.NewReaderSize(section, runBuffer)}
		more, err := r.next()
		if err != nil {
			return err
		}
		if more {
			left = append(left, r)
		}
	}
	heap.Init(&left)
	for last := ""; len(left) > 0; {
		r := left[0]
		if r.key != last {
			last = r.key
			if err := fn(r.key, r.value); err != nil {
				return err
			}
		}
		more, err := r.next()
		if err != nil {
			return err
		}
		if more {
			heap.Fix(&left, 0)
		} else {
			heap.Pop(&left)
		}
	}
	return nil
}

// run is the rest of a run, beginning with the pair that was read last.
type run struct {
	pair
	in *bufio.Reader
}

// next reads the next pair; more is false at the end.
func (r *run) next() (more bool, err error) {
	key, err := binary.ReadUvarint(r.in)
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	value, err := binary.ReadUvarint(r.in)
	if err != nil {
		return false, err
	}
	data := make([]byte, key+value)
	if _, err := io.ReadFull(r.in, data); err != nil {
		return false, err
	}
	r.pair = pair{string(data[:key]), data[key:]}
	return true, nil
}

// runs is a heap by the first key of each run.
type runs []*run

func (r runs) Len() int           { return len(r) }
func (r runs) Less(i, j int) bool { return r[i].key < r[j].key }
func (r runs) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *runs) Push(x any)        { *r = append(*r, x.(*run)) }
func (r *runs) Pop() any {
	last := len(*r) - 1
	popped := (*r)[last]
	*r = (*r)[:last]
	return popped
}
