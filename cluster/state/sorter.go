package state

import (
	"bufio"
	"container/heap"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
)

// sorter sorts more keys than fit into memory: runSize bytes of them at a time are sorted and
// written to a file, and these runs are merged at the end.
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
	// runBuffer is what is in memory of each run while they are merged, in bytes.
	runBuffer = 16 << 10
)

// newSorter makes one whose file is in a directory, without a name: nothing is left of it after the
// process.
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

// add takes a key in any order, and keeps its value.
func (s *sorter) add(p pair) error {
	s.pairs = append(s.pairs, p)
	s.size += len(p.key) + len(p.value)
	if s.size < runSize {
		return nil
	}
	return s.endRun()
}

// endRun sorts what is in memory and writes it out: the lengths of a key and of its value
// (uvarints), and both.
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

// run is what is left of a run, from the pair that was read last.
type run struct {
	pair
	in *bufio.Reader
}

// next reads a pair, where there is one more.
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

// runs is a heap: the one whose key comes first is at its top.
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
