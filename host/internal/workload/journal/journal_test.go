package journal_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/test/lib/check"
)

type record struct{ N int }

const numbers journal.Bucket[record] = "numbers"

func open(t *testing.T, dir string) *journal.Journal {
	t.Helper()
	j, err := journal.Open(dir, hclog.NewNullLogger())
	check.NoError(t, err)
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

func all(t *testing.T, j *journal.Journal) map[string]int {
	t.Helper()
	got := map[string]int{}
	err := j.View(func(tx *journal.Tx) error {
		return numbers.Each(tx, func(key string, r *record) error { got[key] = r.N; return nil })
	})
	check.NoError(t, err)
	return got
}

// A process was killed between the creation of a file and its first write.
func TestFilesThatWereOnlyMade(t *testing.T) {
	for _, name := range []string{"00077.mem", "000077.vlog"} {
		dir := t.TempDir()
		j := open(t, dir)
		check.NoError(t, j.Update(func(tx *journal.Tx) error { return numbers.Put(tx, "a", &record{1}) }))
		check.NoError(t, j.Close())
		check.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		if got := all(t, open(t, dir)); got["a"] != 1 {
			t.Errorf("%s: the journal has %v", name, got)
		}
	}
}

func TestUpdateIsAllOrNothing(t *testing.T) {
	j := open(t, t.TempDir())
	boom := errors.New("boom")
	err := j.Update(func(tx *journal.Tx) error {
		if err := numbers.Put(tx, "a", &record{1}); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatalf("got %v, want boom", err)
	}
	if got := all(t, j); len(got) != 0 {
		t.Errorf("a failed update left %v", got)
	}
}

func TestBucketsAreApart(t *testing.T) {
	j := open(t, t.TempDir())
	const longer journal.Bucket[record] = "numbers-2"
	if err := j.Update(func(tx *journal.Tx) error {
		return errors.Join(numbers.Put(tx, "k", &record{1}), longer.Put(tx, "k", &record{2}))
	}); err != nil {
		t.Fatal(err)
	}
	if got := all(t, j); len(got) != 1 || got["k"] != 1 {
		t.Errorf("got %v, want only k=1", got)
	}
}

func TestConcurrentUpdatesOfOneRecordAllCount(t *testing.T) {
	j := open(t, t.TempDir())
	const workers, each = 16, 20
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				err := j.Update(func(tx *journal.Tx) error {
					r, err := numbers.Get(tx, "sum")
					if err != nil {
						return err
					}
					if r == nil {
						r = &record{}
					}
					r.N++
					return numbers.Put(tx, "sum", r)
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := all(t, j)["sum"]; got != workers*each {
		t.Errorf("sum is %d, want %d", got, workers*each)
	}
}

func TestCloseIsRepeatable(t *testing.T) {
	j := open(t, t.TempDir())
	if err := errors.Join(j.Close(), j.Close()); err != nil {
		t.Error(err)
	}
	if err := j.Update(func(*journal.Tx) error { return nil }); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("an update after Close gave %v, want ErrClosed", err)
	}
}

// A process that is killed while it writes loses nothing that Update had
// acknowledged.
func TestSurvivesKill(t *testing.T) {
	if dir := os.Getenv("JOURNAL_WRITER"); dir != "" {
		writeForEver(dir)
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestSurvivesKill$")
	cmd.Env = append(os.Environ(), "JOURNAL_WRITER="+dir)
	out, err := cmd.StdoutPipe()
	check.NoError(t, err)
	check.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(out)
	last := -1
	for last < 200 && lines.Scan() {
		if n, err := strconv.Atoi(lines.Text()); err == nil {
			last = n
		}
	}
	if last < 200 {
		t.Fatalf("the writer ended after %d", last)
	}
	check.NoError(t, cmd.Process.Kill())
	for lines.Scan() {
		if n, err := strconv.Atoi(lines.Text()); err == nil {
			last = n
		}
	}
	_ = cmd.Wait()
	got := all(t, open(t, dir))
	for i := range last + 1 {
		if v, ok := got[fmt.Sprint(i)]; !ok || v != i {
			t.Fatalf("record %d of %d acknowledged is %v, %t", i, last, v, ok)
		}
	}
}

func writeForEver(dir string) {
	j, err := journal.Open(dir, hclog.NewNullLogger())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for i := 0; ; i++ {
		if err := j.Update(func(tx *journal.Tx) error { return numbers.Put(tx, fmt.Sprint(i), &record{i}) }); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(i)
	}
}

// TestOpenTwice: the journal of a running agent is not set aside.
func TestOpenTwice(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	j := open(t, dir)
	check.NoError(t, j.Update(func(tx *journal.Tx) error { return numbers.Put(tx, "a", &record{1}) }))
	_, err := journal.Open(dir, hclog.NewNullLogger())
	if err == nil || !strings.Contains(err.Error(), "another process has it open") {
		t.Errorf("opened twice: %v", err)
	}
	if _, err := os.Stat(dir + ".damaged"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("set aside: %v", err)
	}
}
