package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/bench/table"
)

// machine describes this machine, with the disk that the benchmarks use.
func machine() (m table.Machine, err error) {
	m = table.Machine{CPU: "unknown CPU", Cores: runtime.NumCPU(), Go: runtime.Version()}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if model := regexp.MustCompile(`(?m)^model name\s*:\s*(.+)$`).FindSubmatch(info); model != nil {
			m.CPU = string(model[1])
		}
	}
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return m, err
	}
	m.Kernel = unix.ByteSliceToString(uname.Release[:])
	var memory unix.Sysinfo_t
	if err := unix.Sysinfo(&memory); err != nil {
		return m, err
	}
	m.MemoryGiB = (memory.Totalram*uint64(memory.Unit) + 1<<29) >> 30
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return m, err
	}
	defer os.RemoveAll(dir)
	syncs, err := syncTimes(dir)
	if err != nil {
		return m, err
	}
	m.SyncP50, m.SyncP99 = syncs.Row("", 0.5).Value, syncs.Row("", 0.99).Value
	m.FileSystem, err = fsType(dir)
	return m, err
}

// syncTimes writes like raft's log: one block after the other into a preallocated file.
func syncTimes(dir string) (times table.Samples, err error) {
	const n = 500
	block := make([]byte, 4096)
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(n*len(block))); err != nil {
		return nil, err
	}
	for i := range n {
		at := time.Now()
		if _, err := f.WriteAt(block, int64(i*len(block))); err != nil {
			return nil, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return nil, err
		}
		times = append(times, time.Since(at))
	}
	return times, nil
}

// fsType returns the file system type of the mount with dir.
func fsType(dir string) (string, error) {
	parents, err := mountinfo.GetMounts(mountinfo.ParentsFilter(dir))
	if err != nil {
		return "", fmt.Errorf("the file system of %s: %w", dir, err)
	}
	if len(parents) == 0 {
		return "", fmt.Errorf("%s is in no mount", dir)
	}
	nearest := parents[0]
	for _, m := range parents {
		if len(m.Mountpoint) >= len(nearest.Mountpoint) {
			nearest = m
		}
	}
	return nearest.FSType, nil
}
