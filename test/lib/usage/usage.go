// Package usage measures what processes have used of the machine, as counted by the kernel, so that other load has
// little influence. It is for tests only.
package usage

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/pannier/pannier/internal/procfs"
)

// CPU returns the CPU time that processes have used so far.
func CPU(t testing.TB, pids ...int) (used time.Duration) {
	t.Helper()
	for _, pid := range pids {
		p, err := procfs.ReadStat(procfs.Dir(pid))
		if err != nil {
			t.Fatal(err)
		}
		used += p.CPU
	}
	return used
}

// CPUHere returns the CPU time that this process and its children have used so far. Children that have ended do
// not count.
func CPUHere(t testing.TB) (used time.Duration) {
	t.Helper()
	all, err := procfs.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.PID == os.Getpid() || p.Parent == os.Getpid() {
			used += p.CPU
		}
	}
	return used
}

var voluntary = regexp.MustCompile(`(?m)^voluntary_ctxt_switches:\s*(\d+)$`)

// WakeUps returns how often the threads of processes have gone to sleep so far, and were woken up again or will be.
// Threads that have ended do not count.
func WakeUps(t testing.TB, pids ...int) (n int) {
	t.Helper()
	for _, pid := range pids {
		threads, err := procfs.Numbers(procfs.Dir(pid) + "/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			status, err := os.ReadFile(fmt.Sprintf("%s/task/%d/status", procfs.Dir(pid), thread))
			if err != nil {
				continue // it has ended
			}
			m := voluntary.FindSubmatch(status)
			if m == nil {
				t.Fatalf("thread %d of process %d has no count of context switches", thread, pid)
			}
			times, err := strconv.Atoi(string(m[1]))
			if err != nil {
				t.Fatal(err)
			}
			n += times
		}
	}
	return n
}

// Memory returns one of a process's values in MiB (proc_pid_status(5)).
func Memory(t testing.TB, pid int, field string) float64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(field + `:\s*(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Fatalf("process %d has no %s", pid, field)
	}
	kib, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}
