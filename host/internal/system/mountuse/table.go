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
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Self is the /proc directory of this process, for Read.
const Self = "/proc/self"

// texts are the buffers of Read.
var texts = sync.Pool{New: func() any { return make([]byte, 1<<16) }}

// Read returns the mounts that a process sees below its root directory, in the order of mounting. dir is the process's
// directory (procfs.Dir).
func Read(dir string) ([]*mountinfo.Info, error) {
	buffer := texts.Get().([]byte)
	text, err := readText(dir+"/mountinfo", buffer[:0])
	defer func() { texts.Put(text[:cap(text)]) }() //nolint:staticcheck // an allocation of a slice's header is cheap
	if err != nil {
		return nil, err
	}
	table, err := mountinfo.GetMountsFromReader(bytes.NewReader(text), nil)
	if err != nil {
		return nil, fmt.Errorf("read %s/mountinfo: %w", dir, err)
	}
	return table, nil
}

// readText appends a file to a buffer. An os.File would wait for changes of a mount table, which can be polled
// (proc_pid_mountinfo(5)): each mount of the machine would wake this process.
func readText(path string, text []byte) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return text, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	for {
		text = slices.Grow(text, 1)
		n, err := unix.Read(fd, text[len(text):cap(text)])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return text, &os.PathError{Op: "read", Path: path, Err: err}
		case n == 0:
			return text, nil
		default:
			text = text[:len(text)+n]
		}
	}
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
