package mounts

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/pannier/pannier/host/internal/system/mountuse"
)

// Mount is a mount as the kernel lists it (proc_pid_mountinfo(5)). At gives it its whole identity.
type Mount struct {
	Path string `json:"path"`
	mountuse.Identity
	ReadOnly bool `json:"read_only"`
}

// Same reports whether two mounts show the same directory of the same file system, wherever they
// are.
func (m Mount) Same(o Mount) bool {
	return m.Identity.Same(o.Identity) && m.ReadOnly == o.ReadOnly
}

// String describes the mount for an operator.
func (m Mount) String() string {
	access := "read-write"
	if m.ReadOnly {
		access = "read-only"
	}
	return fmt.Sprintf("%s of %s (%s, %s)", m.FSType, m.Source, m.Device, access)
}

// Table is what was mounted in this process's namespace at one moment, in the order of mounting.
type Table []*mountinfo.Info

// Read returns the present mount table.
func Read() (Table, error) {
	table, err := mountuse.Read(mountuse.Self)
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return table, nil
}

// At returns what is mounted at path, or nil. Of several mounts on top of each other it is the
// visible one.
func (t Table) At(path string) *Mount {
	i := mountuse.At(t, path)
	if i == nil {
		return nil
	}
	m := newMount(i)
	m.Identity = mountuse.IdentityNow(i)
	return &m
}

// Below returns what is mounted at or below dir, in the order of mounting.
func (t Table) Below(dir string) (found []Mount) {
	for _, i := range t {
		if path := filepath.Clean(i.Mountpoint); path == dir || strings.HasPrefix(path, dir+"/") {
			found = append(found, newMount(i))
		}
	}
	return found
}

// At is Table.At of the present table.
func At(path string) (*Mount, error) {
	t, err := Read()
	return t.At(path), err
}

// Below is Table.Below of the present table.
func Below(dir string) ([]Mount, error) {
	t, err := Read()
	return t.Below(dir), err
}

func newMount(i *mountinfo.Info) Mount {
	return Mount{Path: filepath.Clean(i.Mountpoint), Identity: mountuse.IdentityOf(i), ReadOnly: mountuse.ReadOnly(i)}
}
