package mountuse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/bounded"
)

// Disk is a block device that a volume was mounted from, or published as.
type Disk struct {
	Number string `json:"number"` // MAJOR:MINOR
	// Seq distinguishes it from a later device with the same number, in one boot (sysfs, diskseq). Empty: the kernel
	// is older than 5.15.
	Seq string `json:"seq,omitempty"`
}

// DiskOf returns the block device on which a mounted file system lies, or which is bound at the mount. ok is false if
// there is none.
func DiskOf(m *mountinfo.Info) (d Disk, ok bool) {
	number := diskNumber(m)
	if number == 0 {
		return Disk{}, false
	}
	return diskNumbered(number), true
}

// diskNumber returns the number of DiskOf; 0: there is none.
func diskNumber(m *mountinfo.Info) uint64 {
	if number, ok := blockNumber(m); ok {
		return number
	}
	if m.Major != 0 {
		return Device(m)
	}
	return nodeNumber(m.Source) // such as btrfs, which has numbers of its own
}

func diskNumbered(number uint64) Disk {
	d := Disk{Number: numberText(number)}
	d.Seq = d.seq()
	return d
}

func numberText(number uint64) string {
	return fmt.Sprintf("%d:%d", unix.Major(number), unix.Minor(number))
}

func (d Disk) dir() string { return "/sys/dev/block/" + d.Number }

func (d Disk) seq() string {
	if text, err := os.ReadFile(d.dir() + "/diskseq"); err == nil {
		return strings.TrimSpace(string(text))
	}
	text, _ := os.ReadFile(d.dir() + "/../diskseq") // it is a partition
	return strings.TrimSpace(string(text))
}

// Unused returns nil if this process's namespace has a mount of the device, which is then still a volume, or what its
// driver serves it from; else it is Free.
func (d Disk) Unused() error {
	table, err := Read(Self)
	if err != nil {
		return err
	}
	for _, m := range table {
		if number := diskNumber(m); number != 0 && numberText(number) == d.Number {
			return nil
		}
	}
	return d.Free()
}

// Free returns nil if nothing has the device exclusively (open(2), O_EXCL): no file system on it is mounted, in
// whichever namespace or detached from all, nothing is stacked on it, and nothing swaps to it. The error says what
// does. It is nil as well if the device is gone, or this machine has no file for it in /dev.
func (d Disk) Free() error {
	switch node, err := d.open(); {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%s is in use: %s", node, d.users())
	case errors.Is(err, bounded.ErrNoAnswer):
		return fmt.Errorf("block device %s does not answer whether something uses it", d.Number)
	}
	return nil
}

// open opens the device exclusively, for a moment. The error is unix.EBUSY if something has it, another one if that
// cannot be told; nil also if the device is gone.
func (d Disk) open() (node string, err error) {
	event, err := os.ReadFile(d.dir() + "/uevent")
	if err != nil || d.seq() != d.Seq {
		return "", nil //nolint:nilerr // the device is gone
	}
	_, name, _ := strings.Cut(string(event), "DEVNAME=")
	name, _, _ = strings.Cut(name, "\n")
	node = "/dev/" + name
	return node, asked.Do(fmt.Sprint(d), bounded.Patience, func() error {
		fd, err := unix.Open(node, unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
}

// users describes for an operator what uses the device.
func (d Disk) users() string {
	above, _ := filepath.Glob(d.dir() + "/holders/*")
	for i := range above {
		above[i] = "/dev/" + filepath.Base(above[i]) + " is stacked on it"
	}
	if len(above) == 0 {
		return "the kernel still has it: a mount, an overlay, a detached mount, or swap"
	}
	return strings.Join(above, ", ")
}
