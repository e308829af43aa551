package bench

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// waiting lists the system calls that return when data is on the disk.
var waiting = []string{"fsync", "fdatasync", "sync_file_range", "syncfs", "sync", "msync"}

// countSyncs counts these calls of all threads of a process while do runs.
func countSyncs(b *testing.B, pid int, do func()) int {
	b.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		b.Fatal("fsyncs are counted with strace, which is not here (Debian: strace)")
	}
	trace := filepath.Join(b.TempDir(), "trace")
	stderr, err := os.CreateTemp(b.TempDir(), "stderr")
	if err != nil {
		b.Fatal(err)
	}
	defer stderr.Close()
	cmd := exec.Command(strace, "-f", "-o", trace, "-e", "trace="+strings.Join(waiting, ","), "-p", strconv.Itoa(pid))
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // it has ended already unless something failed
		_ = cmd.Wait()
	}()
	awaitTraced(b, pid, stderr.Name())
	do()
	if err := cmd.Process.Signal(unix.SIGINT); err != nil { // it detaches
		b.Fatal(err)
	}
	_ = cmd.Wait()
	raw, err := os.ReadFile(trace)
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for line := range bytes.Lines(raw) {
		fields := bytes.Fields(line)
		if len(fields) < 2 {
			continue
		}
		// "PID fsync(3) = 0", not "PID <... fsync resumed>". Calls that strace does not know are there too.
		if call, _, is := strings.Cut(string(fields[1]), "("); is && slices.Contains(waiting, call) {
			n++
		}
	}
	return n
}

// awaitTraced waits until every thread of the process is traced.
func awaitTraced(b *testing.B, pid int, stderr string) {
	b.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		untraced := 0
		threads, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/status")
		if err != nil || len(threads) == 0 {
			b.Fatalf("the threads of process %d: %v", pid, err)
		}
		for _, thread := range threads {
			if status, err := os.ReadFile(thread); err == nil && bytes.Contains(status, []byte("TracerPid:\t0\n")) {
				untraced++
			}
		}
		if untraced == 0 {
			return
		}
		if time.Now().After(deadline) {
			said, _ := os.ReadFile(stderr)
			b.Fatalf("strace has not attached to process %d: %s", pid, said)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
