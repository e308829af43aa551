package clusterbench

import (
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

// cpuTime is what processes have used of the CPU so far. What else goes on on the machine
// hardly changes it.
func cpuTime(b *testing.B, pids ...int) (used time.Duration) {
	b.Helper()
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			b.Fatal(err)
		}
		// "pid (name) state ppid ...": the name may have anything in it.
		text := string(raw)
		for _, field := range strings.Fields(text[strings.LastIndexByte(text, ')')+1:])[11:13] { // utime and stime
			ticks, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				b.Fatalf("%s: %v", text, err)
			}
			used += time.Duration(ticks) * tick
		}
	}
	return used
}

// memory reads one of a process's numbers, in MiB (proc_pid_status(5)).
func memory(b *testing.B, pid int, field string) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	m := regexp.MustCompile(field + `:\s*(\d+) kB`).FindSubmatch(status)
	if m == nil {
		b.Fatalf("process %d has no %s", pid, field)
	}
	kib, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib / 1024
}
