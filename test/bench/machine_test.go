package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/bench/table"
)

// machine describes the machine of the measurements.
func machine(b *testing.B) string {
	b.Helper()
	cpu := "unknown CPU"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if m := regexp.MustCompile(`(?m)^model name\s*:\s*(.+)$`).FindSubmatch(info); m != nil {
			cpu = string(m[1])
		}
	}
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		b.Fatal(err)
	}
	var memory unix.Sysinfo_t
	if err := unix.Sysinfo(&memory); err != nil {
		b.Fatal(err)
	}
	// sysinfo(2) counts load in units of 1/65536.
	load := float64(memory.Loads[0]) / (1 << 16)
	dir := b.TempDir()
	syncs := syncTimes(b, dir)
	return fmt.Sprintf(
		"Machine: %s, %d cores, %d GiB of memory; Linux %s; %s; disk: %s, a write of 4 KiB and its fdatasync take %.2f ms (p50), %.2f ms (p99); load before the run: %.1f.",
		cpu, runtime.NumCPU(), (memory.Totalram*uint64(memory.Unit)+1<<29)>>30, unix.ByteSliceToString(uname.Release[:]),
		runtime.Version(), fsType(b, dir), syncs.P50(), syncs.P99(), load)
}

// syncTimes writes like raft's log: one block after the other into a preallocated file.
func syncTimes(b *testing.B, dir string) (times table.Samples) {
	b.Helper()
	const n = 500
	block := make([]byte, 4096)
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(n*len(block))); err != nil {
		b.Fatal(err)
	}
	for i := range n {
		at := time.Now()
		if _, err := f.WriteAt(block, int64(i*len(block))); err != nil {
			b.Fatal(err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(at))
	}
	return times
}

// fsType returns the file system type of the mount with dir.
func fsType(b *testing.B, dir string) string {
	b.Helper()
	parents, err := mountinfo.GetMounts(mountinfo.ParentsFilter(dir))
	if err != nil || len(parents) == 0 {
		b.Fatalf("the file system of %s: %v", dir, err)
	}
	nearest := parents[0]
	for _, m := range parents {
		if len(m.Mountpoint) >= len(nearest.Mountpoint) {
			nearest = m
		}
	}
	return nearest.FSType
}
