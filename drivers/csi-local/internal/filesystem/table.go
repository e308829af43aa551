package filesystem

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Table is a snapshot of the mount table of this mount namespace, oldest mount first.
type Table []*mountinfo.Info

// ReadTable reads the mount table.
func ReadTable() (Table, error) {
	t, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return t, nil
}

// At returns the topmost mount at exactly this path, or nil. The path must have been returned by Resolve.
func (t Table) At(path string) *mountinfo.Info {
	for _, m := range slices.Backward(t) {
		if m.Mountpoint == path {
			return m
		}
	}
	return nil
}

// OfDevice returns the mounts of the file system on a block device.
func (t Table) OfDevice(rdev uint64) []*mountinfo.Info {
	return t.filter(func(m *mountinfo.Info) bool { return IsOf(m, rdev) })
}

// OfNode returns the mounts of a device node: those that make the device
// itself appear somewhere, under a name such as loop3.
func (t Table) OfNode(name string, rdev uint64) []*mountinfo.Info {
	return t.filter(func(m *mountinfo.Info) bool {
		if path.Base(m.Root) != name {
			return false
		}
		var st unix.Stat_t
		err := unix.Stat(m.Mountpoint, &st)
		return err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == rdev
	})
}

func (t Table) filter(keep func(*mountinfo.Info) bool) []*mountinfo.Info {
	var found []*mountinfo.Info
	for _, m := range t {
		if keep(m) {
			found = append(found, m)
		}
	}
	return found
}

// IsOf reports whether m shows the file system on a block device.
func IsOf(m *mountinfo.Info, rdev uint64) bool {
	return m.Major == int(unix.Major(rdev)) && m.Minor == int(unix.Minor(rdev))
}

// IsReadOnly reports whether m is a read-only mount.
func IsReadOnly(m *mountinfo.Info) bool { return slices.Contains(strings.Split(m.Options, ","), "ro") }

// Describe describes a mount for an error.
func Describe(m *mountinfo.Info) string {
	return fmt.Sprintf("%s %s (root %s, %s) at %s", m.FSType, m.Source, m.Root, m.Options, m.Mountpoint)
}

// ErrorState describes what is wrong with a mounted file system; empty: nothing. After an error the kernel
// makes a file system read-only, or shuts it down, although its mounts are still shown as writable.
func ErrorState(m *mountinfo.Info) string {
	super := strings.Split(m.VFSOptions, ",")
	switch {
	case slices.Contains(super, "shutdown"):
		return "the kernel shut the file system down after an error"
	case slices.Contains(super, "emergency_ro"),
		slices.Contains(super, "ro") && slices.Contains(strings.Split(m.Options, ","), "rw"):
		return "the kernel made the file system read-only after an error"
	}
	return ""
}

// Resolve makes a path the way the mount table spells it: absolute and, but for
// its last part, without symbolic links. The last part need not exist.
func Resolve(p string) (string, error) {
	if !filepath.IsAbs(p) {
		return "", fmt.Errorf("path %q is not absolute", p)
	}
	p = filepath.Clean(p)
	dir, err := filepath.EvalSymlinks(filepath.Dir(p))
	if err != nil {
		return "", fmt.Errorf("resolve path %q: %w", p, err)
	}
	return filepath.Join(dir, filepath.Base(p)), nil
}
