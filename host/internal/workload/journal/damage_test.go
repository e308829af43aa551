package journal_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/test/lib/check"
)

// written is a journal that was closed, or left by a killed process.
type written struct {
	dir     string
	content map[string]int
}

type filled struct {
	N    int
	Fill string
}

const fills journal.Bucket[filled] = "fills"

// write1000 writes and deletes records; some are bigger than what Badger keeps in its tables.
func write1000(t *testing.T, closed bool) written {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "journal")
	j, err := journal.Open(dir, hclog.NewNullLogger())
	check.NoError(t, err)
	for i := range 1000 {
		check.NoError(t, j.Update(func(tx *journal.Tx) error {
			key := fmt.Sprint(i % 97)
			if i%5 == 4 {
				return numbers.Delete(tx, key)
			}
			if i%100 == 7 {
				return errors.Join(fills.Put(tx, key, &filled{i, strings.Repeat("x", 100<<10)}), numbers.Put(tx, key, &record{i}))
			}
			return numbers.Put(tx, key, &record{i})
		}))
	}
	w := written{dir: dir, content: content(t, j)}
	if !closed {
		w.dir = w.copyWith(t, "", nil)
	}
	check.NoError(t, j.Close())
	return w
}

func content(t *testing.T, j *journal.Journal) map[string]int {
	t.Helper()
	all := all(t, j)
	check.NoError(t, j.View(func(tx *journal.Tx) error {
		return fills.Each(tx, func(key string, f *filled) error { all["fill "+key] = f.N; return nil })
	}))
	return all
}

// copyWith copies the journal and its mark, with one file replaced. The zeros at the ends of files become holes.
func (w written) copyWith(t *testing.T, file string, with []byte) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "journal")
	check.NoError(t, os.Mkdir(to, 0o700))
	put := func(path string, data []byte) {
		check.NoError(t, os.WriteFile(path, bytes.TrimRight(data, "\x00"), 0o600))
		check.NoError(t, os.Truncate(path, int64(len(data))))
	}
	put(to+".mark", check.Must(os.ReadFile(w.dir+".mark"))(t))
	for _, f := range check.Must(os.ReadDir(w.dir))(t) {
		data := check.Must(os.ReadFile(filepath.Join(w.dir, f.Name())))(t)
		if f.Name() == file {
			data = with
		}
		put(filepath.Join(to, f.Name()), data)
	}
	return to
}

// TestDamagedFiles changes each file of a journal in many places, one at a time, and cuts it off there. The journal is
// then unchanged, or it was set aside with a reason in the log; never older, and the process does not end.
func TestDamagedFiles(t *testing.T) {
	for name, closed := range map[string]bool{"closed": true, "killed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := write1000(t, closed)
			asides := 0
			for _, f := range check.Must(os.ReadDir(w.dir))(t) {
				good := check.Must(os.ReadFile(filepath.Join(w.dir, f.Name())))(t)
				kept := len(bytes.TrimRight(good, "\x00"))
				if kept == 0 {
					continue
				}
				var places []int
				for i := range kept {
					if i < 4 || i >= kept-4 || i%(kept/8+1) == 0 {
						places = append(places, i)
					}
				}
				for _, at := range places {
					bad := bytes.Clone(good)
					bad[at] ^= 0x55
					asides += w.open(t, f.Name(), bad, fmt.Sprintf("%s with a changed byte %d of %d", f.Name(), at, kept))
					asides += w.open(t, f.Name(), good[:at], fmt.Sprintf("%s cut off at %d of %d", f.Name(), at, kept))
				}
			}
			if asides < 20 {
				t.Errorf("only %d damaged journals were set aside", asides)
			}
		})
	}
}

func (w written) open(t *testing.T, file string, with []byte, what string) (asides int) {
	t.Helper()
	dir := w.copyWith(t, file, with)
	defer os.RemoveAll(filepath.Dir(dir))
	var out bytes.Buffer
	j, err := journal.Open(dir, hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Error}))
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return 0
	}
	defer j.Close()
	got := content(t, j)
	_, err = os.Stat(dir + ".damaged")
	aside := !errors.Is(err, fs.ErrNotExist)
	switch said := strings.Contains(out.String(), "was set aside"); {
	case aside && said && len(got) == 0:
		asides = 1
	case aside || said || !maps.Equal(got, w.content):
		t.Errorf("%s: it was set aside: %t, said: %t, and has %d of %d records: %s", what, aside, said, len(got),
			len(w.content), out.String())
	}
	if err := j.Update(func(tx *journal.Tx) error { return numbers.Put(tx, "then", &record{1}) }); err != nil {
		t.Errorf("%s: written to: %v", what, err)
	}
	return asides
}

// TestOlderJournal puts back a complete journal of before, and none at all. After another boot it is accepted: a loss
// of power undoes the last writes.
func TestOlderJournal(t *testing.T) {
	w := write1000(t, true)
	old := w.copyWith(t, "", nil)
	later := check.Must(os.ReadFile(old + ".mark"))(t)
	version := later[len(later)-3:]
	copy(version, "99\n")
	check.NoError(t, os.WriteFile(old+".mark", later, 0o600))
	if got := all(t, open(t, old)); len(got) != 0 {
		t.Errorf("an older journal was accepted: %v", got)
	}
	gone := w.copyWith(t, "", nil)
	check.NoError(t, os.RemoveAll(gone))
	open(t, gone)
	if _, err := os.Stat(gone + ".damaged"); err != nil {
		t.Errorf("a journal that is gone was not noticed: %v", err)
	}
	rebooted := w.copyWith(t, "", nil)
	copy(later, "another boot")
	check.NoError(t, os.WriteFile(rebooted+".mark", later, 0o600))
	if got := content(t, open(t, rebooted)); !maps.Equal(got, w.content) {
		t.Errorf("after a reboot the journal has %v", got)
	}
}
