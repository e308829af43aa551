// Package check has small helpers that the tests of all packages use.
package check

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pannier/pannier/internal/procfs"
)

// Patience limits how long Eventually waits. It is long, so that a slow machine does not fail a test. A
// passing test does not wait for it.
const Patience = time.Minute

// interval is the pause between two polls.
const interval = 2 * time.Millisecond

// NoError ends the test if there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Buffer collects what several goroutines write.
type Buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Must returns a function that returns the value, or ends the test if there is an error:
//
//	data := check.Must(os.ReadFile(path))(t)
func Must[T any](value T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return value
	}
}

// Eventually polls until ok returns true, and ends the test if that takes longer than Patience. what describes the
// condition.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !ok(); time.Sleep(interval) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}

// Stop stops a process (SIGSTOP), and returns when each of its threads has stopped: on a busy machine they run on for
// a while. The test ends it or lets it continue.
func Stop(t testing.TB, pid int) {
	t.Helper()
	NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	Eventually(t, fmt.Sprintf("process %d has stopped", pid), func() bool {
		tasks := filepath.Join(procfs.Dir(pid), "task")
		threads, err := procfs.Numbers(tasks)
		NoError(t, err)
		for _, thread := range threads {
			stat, err := procfs.ReadStat(filepath.Join(tasks, strconv.Itoa(thread)))
			if err == nil && stat.State != 'T' && !stat.Ended() {
				return false
			}
		}
		return true
	})
}

// Parallel lets a test run beside others, as t.Parallel does. What a test opens calls it, more than once perhaps.
func Parallel(t *testing.T) {
	t.Helper()
	if _, again := parallel.LoadOrStore(t, true); !again {
		t.Parallel()
	}
}

var parallel sync.Map // of *testing.T

// SideBySide sets how many of a package's tests run in parallel, unless the flag -test.parallel does; a child
// process with this one's arguments does the same. A TestMain whose tests mostly wait calls it; the default is the
// number of processors.
func SideBySide(tests int) {
	n := strconv.Itoa(tests)
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return
	}
	if err := flag.Set("test.parallel", n); err != nil {
		panic(err)
	}
	os.Args = append(os.Args[:1], append([]string{"-test.parallel=" + n}, os.Args[1:]...)...)
}
