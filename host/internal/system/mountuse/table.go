// Package mountuse finds out who uses what is mounted at a path, in all mount namespaces of the machine: Holders lists
// the copies of a mount and what lies on it, a Scene finds processes that have files of a mount open, and a Disk tells
// whether the kernel still uses a block device.
//
// It reads text in /proc and /sys, and asks a file system only where its comments say so: one that hangs must not hold
// up the caller. The fence relies on that. It uses no Holder, whose text also names the container (package owner), read
// from the engine's files.
package mountuse

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Self is the /proc directory of this process, for Read.
const Self = "/proc/self"

// Read returns the mounts that a process sees below its root directory, in the order of mounting. dir is the process's
// directory (procfs.Dir).
func Read(dir string) ([]*mountinfo.Info, error) {
	text, err := os.ReadFile(dir + "/mountinfo")
	if err != nil {
		return nil, err
	}
	table, err := mountinfo.GetMountsFromReader(bytes.NewReader(text), nil)
	if err != nil {
		return nil, fmt.Errorf("read %s/mountinfo: %w", dir, err)
	}
	return table, nil
}

// At returns what is mounted at path, which must be clean; nil: nothing is. Of several mounts on top of each other it
// is the visible one.
func At(table []*mountinfo.Info, path string) *mountinfo.Info {
	for _, m := range slices.Backward(table) {
		if m.Mountpoint == path {
			return m
		}
	}
	return nil
}

// Shows reports whether m shows what original shows, or a part of it, in whatever namespace the two are.
func Shows(m, original *mountinfo.Info) bool {
	return Device(m) == Device(original) && Within(m.Root, original.Root)
}

// Device is the device number of the mounted file system.
func Device(m *mountinfo.Info) uint64 { return unix.Mkdev(uint32(m.Major), uint32(m.Minor)) }

// Within reports whether path is dir or lies below it. Both must be clean.
func Within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// ReadOnly reports whether the mount, or its file system, is read-only.
func ReadOnly(m *mountinfo.Info) bool {
	return slices.Contains(strings.Split(m.Options+","+m.VFSOptions, ","), "ro")
}
