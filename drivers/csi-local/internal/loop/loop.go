// Package loop attaches image files to loop devices and finds them again. All state is the kernel's:
// /sys/block/loop*/loop and LOOP_GET_STATUS64.
//
// Invariants: a device belongs to a file only if the device and inode number of its backing file say so, and a
// file is never attached twice in the same mode (two devices would not see each other's cached writes).
package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Device is a loop device that a file is attached to.
type Device struct {
	Path      string // such as /dev/loop3
	Rdev      uint64 // the device number, as in stat(2)
	ReadOnly  bool
	AutoClear bool // the kernel detaches the file when the last user has closed the device
}

// Name is the last part of the path, such as loop3.
func (d Device) Name() string { return filepath.Base(d.Path) }

// Options are how a file is attached.
type Options struct {
	ReadOnly bool
	// AutoClear makes the device detach itself when its last user (an open file, or a mount in any mount
	// namespace) is gone, so that it cannot leak.
	AutoClear bool
}

// deleted is what the kernel adds to the path of a file that was deleted.
const deleted = " (deleted)"

// Find returns all loop devices that image is attached to. A deleted image is recognised by its path.
func Find(image string) ([]Device, error) {
	// A machine keeps its unused loop devices. /proc/partitions has those in use.
	partitions, err := os.ReadFile("/proc/partitions")
	if err != nil {
		return nil, fmt.Errorf("list block devices: %w", err)
	}
	var found []Device
	for line := range strings.Lines(string(partitions)) {
		fields := strings.Fields(line)
		if len(fields) != 4 || !strings.HasPrefix(fields[3], "loop") {
			continue
		}
		path, err := backing(fields[3])
		// The image's name is unique. Checking it first avoids opening other devices, which would make them busy for a
		// moment.
		if err != nil || filepath.Base(strings.TrimSuffix(path, deleted)) != filepath.Base(image) {
			continue
		}
		f, dev, err := open("/dev/"+fields[3], image)
		if errors.Is(err, errNotOurs) {
			continue
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return nil, err
		}
		found = append(found, dev)
	}
	return found, nil
}

// backing returns the path of the file of a loop device, as the kernel has it.
func backing(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join("/sys/block", name, "loop/backing_file"))
	return strings.TrimSuffix(string(text), "\n"), err
}

// Acquire returns a device that image is attached to in the wanted mode, an existing or a new one, and an open
// file that holds it. With AutoClear the device exists until hold and all other users are closed.
func Acquire(ctx context.Context, image string, opts Options) (dev Device, hold *os.File, err error) {
	found, err := Find(image)
	if err != nil {
		return Device{}, nil, err
	}
	for _, dev := range found {
		if dev.ReadOnly != opts.ReadOnly {
			continue
		}
		hold, err := dev.hold(image, opts)
		if errors.Is(err, errNotOurs) {
			break // it was detached just now
		}
		dev.AutoClear = opts.AutoClear
		return dev, hold, err
	}
	return attach(ctx, image, opts)
}

// Detach detaches the device. If it is still open, the kernel detaches it when the last user closes it. A device
// that belongs to another image now is left alone.
func (d Device) Detach(image string) error {
	f, _, err := open(d.Path, image)
	if errors.Is(err, errNotOurs) {
		return nil
	}
	if err != nil {
		return err
	}
	err = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
	if errors.Is(err, unix.ENXIO) {
		err = nil
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("detach %s: %w", d.Path, err)
	}
	return nil
}

// Resize sets the device's size to its file's.
func (d Device) Resize() error {
	return d.ioctl("resize", unix.LOOP_SET_CAPACITY, 0)
}

// Flush writes the kernel's cached data of the device to its file.
func (d Device) Flush() error {
	return d.ioctl("flush", unix.BLKFLSBUF, 0)
}

// SetReadAhead sets how much the kernel reads ahead of those who read the device, or its file system, from now on.
func (d Device) SetReadAhead(bytes int) error {
	return d.ioctl("set the read-ahead of", unix.BLKRASET, bytes/512)
}

// Size returns the device's size in bytes.
func (d Device) Size() (int64, error) {
	data, err := os.ReadFile(filepath.Join("/sys/block", d.Name(), "size"))
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", d.Path, err)
	}
	sectors, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return sectors * 512, err
}

func (d Device) ioctl(what string, req uint, value int) error {
	f, err := os.OpenFile(d.Path, os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, d.Path, err)
	}
	err = errors.Join(unix.IoctlSetInt(int(f.Fd()), req, value), f.Close())
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, d.Path, err)
	}
	return nil
}

// hold opens the device and sets the wanted AutoClear.
func (d Device) hold(image string, opts Options) (*os.File, error) {
	f, now, err := open(d.Path, image)
	if err != nil {
		return nil, err
	}
	if now.AutoClear == opts.AutoClear {
		return f, nil
	}
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err == nil {
		info.Flags ^= unix.LO_FLAGS_AUTOCLEAR
		err = unix.IoctlLoopSetStatus64(int(f.Fd()), info)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("change %s: %w", d.Path, err), f.Close())
	}
	return f, nil
}

// attach attaches image to a free device in one step (LOOP_CONFIGURE).
func attach(ctx context.Context, image string, opts Options) (Device, *os.File, error) {
	mode, flags := os.O_RDWR, uint32(unix.LO_FLAGS_DIRECT_IO) // the kernel ignores direct I/O if it is not possible
	if opts.ReadOnly {
		mode, flags = os.O_RDONLY, flags|unix.LO_FLAGS_READ_ONLY
	}
	if opts.AutoClear {
		flags |= unix.LO_FLAGS_AUTOCLEAR
	}
	file, err := os.OpenFile(image, mode, 0)
	if err != nil {
		return Device{}, nil, fmt.Errorf("attach a loop device: %w", err)
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return Device{}, nil, fmt.Errorf("attach a loop device: %w", err)
	}
	defer control.Close()
	for ctx.Err() == nil {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return Device{}, nil, fmt.Errorf("find a free loop device: %w", err)
		}
		path := "/dev/loop" + strconv.Itoa(n)
		hold, err := configure(path, file, flags, mode)
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENXIO) {
			continue // another process took the device first
		}
		if err != nil {
			return Device{}, nil, fmt.Errorf("attach %s to %s: %w", image, path, err)
		}
		dev, err := inspect(hold, image)
		if err != nil {
			return Device{}, nil, errors.Join(err, hold.Close())
		}
		return dev, hold, nil
	}
	return Device{}, nil, fmt.Errorf("attach %s to a loop device: %w", image, context.Cause(ctx))
}

func configure(path string, file *os.File, flags uint32, mode int) (*os.File, error) {
	dev, err := os.OpenFile(path, mode, 0)
	if err != nil {
		return nil, err
	}
	cfg := unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: flags}}
	copy(cfg.Info.File_name[:len(cfg.Info.File_name)-1], file.Name())
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), &cfg); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return dev, nil
}

// errNotOurs means that a device has no file, or a different one.
var errNotOurs = errors.New("not attached to this file")

// open opens a device, and fails with errNotOurs if its file is not image. While it is open, its file cannot
// change.
func open(path, image string) (*os.File, Device, error) {
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, os.ErrNotExist) {
		return nil, Device{}, errNotOurs
	}
	if err != nil {
		return nil, Device{}, fmt.Errorf("open loop device: %w", err)
	}
	dev, err := inspect(f, image)
	if err != nil {
		return nil, dev, errors.Join(err, f.Close())
	}
	return f, dev, nil
}

// inspect describes an open device whose file is image.
func inspect(f *os.File, image string) (Device, error) {
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return Device{}, errNotOurs
	}
	var device, file unix.Stat_t
	if err == nil {
		err = unix.Fstat(int(f.Fd()), &device)
	}
	if err != nil {
		return Device{}, fmt.Errorf("status of %s: %w", f.Name(), err)
	}
	switch err := unix.Stat(image, &file); {
	case errors.Is(err, unix.ENOENT):
		// The file was deleted: only its recorded path is left.
		if path, err := backing(filepath.Base(f.Name())); err != nil || path != image+deleted {
			return Device{}, errNotOurs
		}
	case err != nil:
		return Device{}, fmt.Errorf("stat %s: %w", image, err)
	case info.Device != file.Dev || info.Inode != file.Ino:
		return Device{}, errNotOurs
	}
	return Device{
		Path:      f.Name(),
		Rdev:      device.Rdev,
		ReadOnly:  info.Flags&unix.LO_FLAGS_READ_ONLY != 0,
		AutoClear: info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0,
	}, nil
}
