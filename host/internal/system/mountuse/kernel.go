package mountuse

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// The kernel lists mount namespaces and their mounts itself (Linux 6.12 and later): also those that no process is in,
// which descriptors and binds hold. It takes a system call for each mount instead of two for each process of the
// machine.

// kernelViews reads the mounts of each mount namespace but this process's own. An error means that the kernel does not
// tell.
func kernelViews() (map[Tree]view, error) {
	views := map[Tree]view{}
	k := kernelTable{buffer: make([]byte, 1<<16)}
	err := eachNamespace(func(_ int, inode, id uint64) error {
		table, err := k.read(id)
		t := Tree{inode, "/"}
		views[t] = view{Tree: t, mounts: table}
		return err
	})
	return views, err
}

// elsewhere reports whether another mount namespace may have something of some file systems: a mount of one, or an
// overlay that is none of those that are known. It asks less of each mount than kernelViews. An error means that the
// kernel does not tell.
func elsewhere(of func(device uint64) bool, known map[uint64]bool) (found bool, err error) {
	k := kernelTable{buffer: make([]byte, 1<<12)}
	err = eachNamespace(func(_ int, _, id uint64) error {
		return k.each(id, func(mount uint64) error {
			if found {
				return nil
			}
			m, err := k.mount(id, mount, sbBasic)
			if errors.Is(err, unix.ENOENT) {
				return nil
			}
			found = err == nil && (of(Device(m)) || m.FSType == "overlay" && !known[Device(m)])
			return err
		})
	})
	return found, err
}

// nsMntGet returns the request of an ioctl_nsfs(2) that returns a descriptor of the next or the previous mount
// namespace: NS_MNT_GET_NEXT is _IOR(0xb7, 11, struct mnt_ns_info), NS_MNT_GET_PREV has 12 (linux/nsfs.h).
func nsMntGet(number uintptr) uintptr {
	return 2<<30 | unsafe.Sizeof(mntNSInfo{})<<16 | 0xb7<<8 | number
}

const nextNamespace, previousNamespace = 11, 12

// mntNSInfo is struct mnt_ns_info of linux/nsfs.h.
type mntNSInfo struct {
	size, mounts uint32
	id           uint64
}

// eachNamespace calls do for each mount namespace but this process's own, with a descriptor that is closed afterwards,
// the inode (procfs.MountNamespace) and the kernel's number. It ends with the first error.
func eachNamespace(do func(fd int, inode, id uint64) error) error {
	own, err := unix.Open(Self+"/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	for _, direction := range []uintptr{nextNamespace, previousNamespace} {
		for at := own; ; {
			info := mntNSInfo{size: uint32(unsafe.Sizeof(mntNSInfo{}))}
			fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(at), nsMntGet(direction), uintptr(unsafe.Pointer(&info)))
			if at != own {
				_ = unix.Close(at) // nothing was written through it
			}
			if errno == unix.ENOENT {
				break // it was the last
			}
			if errno != 0 {
				return errno
			}
			at = int(fd)
			var st unix.Stat_t
			err := unix.Fstat(at, &st)
			if err == nil {
				err = do(at, st.Ino, info.id)
			}
			if err != nil {
				_ = unix.Close(at) // nothing was written through it
				return err
			}
		}
	}
	return nil
}

// kernelTable reads the mounts of namespaces by listmount(2) and statmount(2).
type kernelTable struct{ buffer []byte }

// mountRequest is struct mnt_id_req of linux/mount.h.
type mountRequest struct {
	size, _      uint32
	mount, param uint64
	mntNamespace uint64
}

// read returns the mounts of a namespace in the order of mounting; none if it is gone.
func (k kernelTable) read(namespace uint64) (table []*mountinfo.Info, err error) {
	err = k.each(namespace, func(id uint64) error {
		m, err := k.mount(namespace, id, sbBasic|mntBasic|mntRoot|mntPoint|fsType)
		if err == nil {
			table = append(table, m)
		}
		if errors.Is(err, unix.ENOENT) {
			return nil // it was unmounted
		}
		return err
	})
	return table, err
}

// each calls do with the number of each mount of a namespace in the order of mounting.
func (k kernelTable) each(namespace uint64, do func(id uint64) error) error {
	const root = ^uint64(0) // LSMT_ROOT
	req := mountRequest{size: uint32(unsafe.Sizeof(mountRequest{})), mount: root, mntNamespace: namespace}
	for {
		var page [256]uint64
		n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&req)), uintptr(unsafe.Pointer(&page[0])),
			uintptr(len(page)), 0, 0, 0)
		switch {
		case errno == unix.ENOENT:
			return nil // the namespace is gone, with its mounts
		case errno != 0:
			return errno
		}
		for _, id := range page[:n] {
			if err := do(id); err != nil {
				return err
			}
		}
		if int(n) < len(page) {
			return nil
		}
		req.param = page[n-1] // the next page begins after it
	}
}

// What statmount(2) is asked for.
const sbBasic, mntBasic, mntRoot, mntPoint, fsType, mntOpts, sbSource = 0x1, 0x2, 0x8, 0x10, 0x20, 0x80, 0x200

// mount reads what is needed of one mount; with its root, also what else there is. The error is ENOENT if it is gone.
func (k kernelTable) mount(namespace, id, needed uint64) (*mountinfo.Info, error) {
	req := mountRequest{size: uint32(unsafe.Sizeof(mountRequest{})), mount: id, mntNamespace: namespace, param: needed}
	if needed&mntRoot != 0 {
		req.param |= mntOpts | sbSource
	}
	_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&req)), uintptr(unsafe.Pointer(&k.buffer[0])),
		uintptr(len(k.buffer)), 0, 0, 0)
	if errno != 0 {
		return nil, errno
	}
	// struct statmount of linux/mount.h: offsets of numbers, and of strings by where their own offsets are. A string that
	// the mount does not have is not in mask. The numbers of mounts are those of mount tables. The
	// type is without its subtype, and Linux 6.12 does not tell the source.
	const (
		options, mask, major, minor, magic, sbFlags, typ = 4, 8, 16, 20, 24, 32, 36
		number, parent, attributes, group, master        = 56, 60, 64, 80, 88
		root, point, source, texts                       = 104, 108, 124, 512
	)
	short := func(at int) int { return int(binary.NativeEndian.Uint32(k.buffer[at:])) }
	long := func(at int) uint64 { return binary.NativeEndian.Uint64(k.buffer[at:]) }
	have := long(mask)
	if have&needed != needed {
		return nil, unix.ENOSYS
	}
	text := func(bit uint64, at int) string {
		if have&bit == 0 {
			return ""
		}
		from := k.buffer[texts+short(at):]
		return string(from[:max(0, bytes.IndexByte(from, 0))])
	}
	if needed&mntRoot == 0 {
		m := &mountinfo.Info{Major: short(major), Minor: short(minor)}
		if long(magic) == unix.OVERLAYFS_SUPER_MAGIC {
			m.FSType = "overlay"
		}
		return m, nil
	}
	m := &mountinfo.Info{
		ID: short(number), Parent: short(parent), Major: short(major), Minor: short(minor), FSType: text(fsType, typ),
		Source: text(sbSource, source), Root: text(mntRoot, root), Mountpoint: text(mntPoint, point),
		VFSOptions: text(mntOpts, options),
	}
	if long(attributes)&unix.MOUNT_ATTR_RDONLY != 0 || short(sbFlags)&unix.MS_RDONLY != 0 {
		m.Options = "ro"
	}
	var optional []string
	if id := long(group); id != 0 {
		optional = append(optional, "shared:"+strconv.FormatUint(id, 10))
	}
	if id := long(master); id != 0 {
		optional = append(optional, "master:"+strconv.FormatUint(id, 10))
	}
	m.Optional = strings.Join(optional, " ")
	return m, nil
}
