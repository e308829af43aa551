package meshbench

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// tick is the unit of proc_pid_stat(5) on Linux, whatever the kernel's own is.
const tick = 10 * time.Millisecond

// cpuTime is what this process and its children, the plugins and Consul, have used of the
// CPU so far. What else goes on on the machine hardly changes it.
func cpuTime(b *testing.B) (used time.Duration) {
	b.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		b.Fatal(err)
	}
	self := strconv.Itoa(os.Getpid())
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// "pid (name) state ppid ...": the name may have anything in it.
		text := string(raw)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if fields[1] != self && filepath.Base(filepath.Dir(path)) != self {
			continue
		}
		for _, field := range fields[11:13] { // utime and stime
			ticks, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				b.Fatalf("%s: %v", path, err)
			}
			used += time.Duration(ticks) * tick
		}
	}
	return used
}
