// Package usage is what processes have used of the machine, as the kernel counts it. What
// else goes on there hardly changes it. It may be imported by tests only.
package usage

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// tick is the unit of proc_pid_stat(5) on Linux, whatever the kernel's own is.
const tick = 10 * time.Millisecond

// CPU is the time that processes have had of the CPU so far.
func CPU(t testing.TB, pids ...int) (used time.Duration) {
	t.Helper()
	for _, pid := range pids {
		_, its, err := stat(pid)
		if err != nil {
			t.Fatal(err)
		}
		used += its
	}
	return used
}

// CPUHere is the time that this process and its children have had of the CPU so far. A child
// that has ended does not count any more.
func CPUHere(t testing.TB) (used time.Duration) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue // no process
		}
		parent, its, err := stat(pid)
		if err == nil && (pid == os.Getpid() || parent == os.Getpid()) { // or it has ended
			used += its
		}
	}
	return used
}

// stat reads a process's parent, and the time that it has had of the CPU, from
// "pid (name) state ppid ...": the name may have anything in it.
func stat(pid int) (parent int, used time.Duration, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	text := string(raw)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	parent, err = strconv.Atoi(fields[1])
	for _, field := range fields[11:13] { // utime and stime
		ticks, bad := strconv.ParseInt(field, 10, 64)
		err = errors.Join(err, bad)
		used += time.Duration(ticks) * tick
	}
	return parent, used, err
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
