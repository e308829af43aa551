//go:build failpoint

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

var mu sync.Mutex

// Here kills the process when the first line of the file is what:point.
func Here(what, point string) {
	path := os.Getenv("PANNIER_FAILPOINT")
	if path == "" {
		return
	}
	mu.Lock()
	defer mu.Unlock()
	raw, err := os.ReadFile(path)
	if err != nil {
		return // no crash is wanted
	}
	first, rest, _ := strings.Cut(string(raw), "\n")
	label, count, _ := strings.Cut(first, "#")
	if label != what+":"+point {
		return
	}
	if n, _ := strconv.Atoi(count); n > 1 {
		write(path, fmt.Sprintf("%s#%d\n%s", label, n-1, rest))
		return
	}
	write(path, rest)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // do not return to the caller
}

func write(path, lines string) {
	if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
		panic(fmt.Sprintf("failpoint: %v", err)) // otherwise it would crash again and again
	}
}

// Shorter returns a second at most: tests do not wait for d.
func Shorter(d time.Duration) time.Duration { return min(d, time.Second) }
