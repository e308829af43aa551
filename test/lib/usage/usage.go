// Package usage is what processes have used of the machine, as the kernel counts it. What
// else goes on there hardly changes it. It may be imported by tests only.
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

// CPU is the time that processes have had of the CPU so far.
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

// CPUHere is the time that this process and its children have had of the CPU so far. A child
// that has ended does not count any more.
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

// Memory is one of a process's numbers, in MiB (proc_pid_status(5)).
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
