package state

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

// written is a ledger with its log, its content and its directory, which was closed or left by a killed
// process.
type written struct {
	dir     string
	log     []Entry
	content map[string]string
}

func write50(t *testing.T, closed bool, options ...Option) written {
	t.Helper()
	w := written{dir: t.TempDir()}
	s, err := Open(w.dir, nil, options...)
	check.NoError(t, err)
	l := &ledger{Store: s, t: t}
	do := func(c command.Command) {
		l.must(c)
		w.log = append(w.log, Entry{Index: l.index, Command: c})
	}
	for i := range 50 {
		v := volume(fmt.Sprint("v", i), claim.SingleNodeWriter)
		v.Parameters = map[string]string{"fill": strings.Repeat("x", 500)}
		do(&command.RegisterVolume{Volume: v})
		do(&command.StartWorkload{
			Ref: workload(fmt.Sprint("w", i)), Node: "n",
			Claims: []claim.Claim{wanted(fmt.Sprint("v", i), claim.SingleNodeWriter, claim.Write)},
		})
	}
	w.content = l.dump()
	if !closed {
		w.dir = copyDir(t, w.dir)
	}
	check.NoError(t, s.Close())
	return w
}

// TestDamagedFiles changes each file in many places, one at a time. The ledger is then unchanged, or older or
// empty with a reason in the log, but never wrong. With the raft log it becomes complete again.
func TestDamagedFiles(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	for name, row := range map[string]struct {
		closed  bool
		options []Option
	}{
		"closed":            {true, nil},
		"killed":            {false, nil},
		"encrypted":         {true, []Option{WithKey(key)}},
		"encrypted, killed": {false, []Option{WithKey(key)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := write50(t, row.closed, row.options...)
			files, err := filepath.Glob(filepath.Join(w.dir, "db-0", "*"))
			if err != nil || len(files) < 4 {
				t.Fatal(files, err)
			}
			for _, path := range files {
				good, err := os.ReadFile(path)
				check.NoError(t, err)
				kept := len(bytes.TrimRight(good, "\x00"))
				for _, at := range places(kept) {
					bad := bytes.Clone(good)
					bad[at] ^= 0x55
					w.open(t, filepath.Base(path), bad, fmt.Sprintf("%s with a changed byte %d of %d", filepath.Base(path), at, kept),
						row.options)
				}
				if strings.HasSuffix(path, ".sst") || filepath.Base(path) == "MANIFEST" {
					w.open(t, filepath.Base(path), good[:kept-1], "a cut "+filepath.Base(path), row.options)
					w.open(t, filepath.Base(path), nil, "an empty "+filepath.Base(path), row.options)
				}
			}
		})
	}
}

// places returns the offsets of the first and last bytes of a file, and some between them.
func places(size int) (at []int) {
	for i := range size {
		if i < 8 || i >= size-8 || i%(size/6+1) == 0 {
			at = append(at, i)
		}
	}
	return at
}

// open opens a copy of the ledger with one file replaced.
func (w written) open(t *testing.T, file string, content []byte, what string, options []Option) {
	t.Helper()
	dir := w.copyWith(t, file, content)
	var out bytes.Buffer
	s, err := Open(dir, hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Error}), options...)
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		os.RemoveAll(dir)
	}()
	rest := w.log[s.AppliedIndex():]
	if len(rest) == len(w.log) && !strings.Contains(out.String(), "is damaged") && filepath.Ext(file) != ".mem" {
		t.Errorf("%s: it is empty, and the log has no reason: %s", what, out.String())
	}
	if _, err := s.Apply(rest); err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	l := &ledger{Store: s, t: t}
	if !maps.Equal(l.dump(), w.content) {
		t.Errorf("%s: it has a different content from index %d on", what, int(w.log[0].Index)+len(w.log)-len(rest))
	}
}

// copyWith copies the ledger with one file replaced. The zeros at the ends of the files, which are most of
// their content, become holes, as Badger leaves them.
func (w written) copyWith(t *testing.T, file string, content []byte) string {
	t.Helper()
	to := t.TempDir()
	err := filepath.WalkDir(w.dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, w.dir))
		if entry.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		data := content
		if entry.Name() != file {
			if data, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		return errors.Join(os.WriteFile(target, bytes.TrimRight(data, "\x00"), 0o600), os.Truncate(target, int64(len(data))))
	})
	check.NoError(t, err)
	return to
}

func TestMissingFiles(t *testing.T) {
	w := write50(t, true)
	tables, err := filepath.Glob(filepath.Join(w.dir, "db-0", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	check.NoError(t, os.Remove(tables[0]))
	var out bytes.Buffer
	s, err := Open(w.dir, hclog.New(&hclog.LoggerOptions{Output: &out}))
	check.NoError(t, err)
	defer s.Close()
	if s.AppliedIndex() != 0 || !strings.Contains(out.String(), filepath.Base(tables[0])) {
		t.Errorf("opened at %d, and logged: %s", s.AppliedIndex(), out.String())
	}
}

// TestTwoMemtables: the older one of two memtables is not trusted, because Badger may have truncated it.
func TestTwoMemtables(t *testing.T) {
	w := write50(t, false)
	memtables, err := filepath.Glob(filepath.Join(w.dir, "db-0", "*.mem"))
	if err != nil || len(memtables) != 1 {
		t.Fatal(memtables, err)
	}
	data, err := os.ReadFile(memtables[0])
	check.NoError(t, err)
	check.NoError(t, os.WriteFile(filepath.Join(w.dir, "db-0", "00009.mem"), data, 0o600))
	if got := openIn(t, w.dir); got.AppliedIndex() != 0 {
		t.Errorf("opened at %d", got.AppliedIndex())
	}
}

func TestKeys(t *testing.T) {
	key, other := bytes.Repeat([]byte{7}, 32), bytes.Repeat([]byte{8}, 32)
	w := write50(t, true, WithKey(key))
	files, err := filepath.Glob(filepath.Join(w.dir, "*", "*"))
	check.NoError(t, err)
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil || bytes.Contains(data, []byte("hostpath")) || bytes.Contains(data, key) {
			t.Errorf("%s has a record, or the key, in plain text: %v", path, err)
		}
	}
	for name, options := range map[string][]Option{
		"another": {WithKey(other)}, "none": nil,
		"an empty one": {WithKey(nil)},
	} {
		if _, err := Open(w.dir, nil, options...); !errors.Is(err, ErrWrongKey) {
			t.Errorf("with %s: %v", name, err)
		}
	}
	if _, err := Open(t.TempDir(), nil, WithKey([]byte("short"))); err == nil {
		t.Error("a key of 5 bytes is accepted")
	}
	s, err := Open(w.dir, nil, WithKey(key))
	check.NoError(t, err)
	if l := (&ledger{Store: s, t: t}); !maps.Equal(l.dump(), w.content) {
		t.Error("opened with its key, the ledger has a different content")
	}
	l := &ledger{Store: s, t: t}
	restore(t, l, snapshot(t, l)) // this adds a second generation
	if !maps.Equal(l.dump(), w.content) {
		t.Error("the restored ledger has a different content")
	}
	check.NoError(t, s.Close())

	// A ledger without encryption is not trusted and is rebuilt.
	plain := write50(t, true)
	var out bytes.Buffer
	s, err = Open(plain.dir, hclog.New(&hclog.LoggerOptions{Output: &out}), WithKey(key))
	check.NoError(t, err)
	defer s.Close()
	if s.AppliedIndex() != 0 || !strings.Contains(out.String(), "was not encrypted") ||
		strings.Contains(out.String(), "damaged") {
		t.Errorf("an unencrypted ledger is opened at %d, and it logged: %s", s.AppliedIndex(), out.String())
	}
	if _, err := s.Apply(plain.log); err != nil {
		t.Fatal(err)
	}
}
