package mountuse

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// The kernel lists mount namespaces and their mounts itself (Linux 6.12 and later), which takes a system call for each
// mount instead of two for each process of the machine. It tells no process, so this only proves that there is no
// holder elsewhere; who holds a volume is found by processes.

// onlyHere reports whether no other mount namespace has anything of a volume that counts for Holders: neither a mount
// that shows what places and copies of the scene show, outside ignore, nor a layer on one. The scene must be of this
// namespace alone, without block devices. An error means that the kernel does not tell.
func onlyHere(sc *Scene, table []*mountinfo.Info, ignore string) (bool, error) {
	var volume []*mountinfo.Info
	known := map[uint64]bool{}
	for _, m := range table {
		known[Device(m)] = true
		if sc.ids[m.ID] != "" {
			volume = append(volume, m)
		}
	}
	namespaces, err := mountsElsewhere()
	if err != nil {
		return false, err
	}
	for _, mounts := range namespaces {
		copied, layers := false, false
		for _, m := range mounts {
			switch {
			case slices.ContainsFunc(volume, m.shows):
				if !strings.Contains(m.point, ignore+"/") {
					return false, nil
				}
				copied = true
			case m.fsType == "overlay" && !known[m.device]: // what is here too was looked at here
				if slices.ContainsFunc(overlayDirs(m.options), func(dir string) bool { return sc.askedAbove(dir) != "" }) {
					return false, nil
				}
				layers = true
			}
		}
		if copied && layers { // its directories have the names that they had for its mounter
			return false, nil
		}
	}
	return true, nil
}

// mountsElsewhere returns the mounts of each mount namespace but this process's own.
func mountsElsewhere() (all [][]kernelMount, err error) {
	namespaces, err := otherNamespaces()
	if err != nil {
		return nil, err
	}
	k := kernelTable{buffer: make([]byte, 1<<16)}
	for _, namespace := range namespaces {
		ids, err := k.list(namespace)
		if err != nil {
			return nil, err
		}
		mounts := make([]kernelMount, 0, len(ids))
		for _, id := range ids {
			m, err := k.mount(namespace, id)
			if errors.Is(err, unix.ENOENT) {
				continue // it was unmounted
			}
			if err != nil {
				return nil, err
			}
			mounts = append(mounts, m)
		}
		all = append(all, mounts)
	}
	return all, nil
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

// otherNamespaces returns the kernel's numbers of all mount namespaces but this process's own.
func otherNamespaces() (ids []uint64, err error) {
	own, err := unix.Open(Self+"/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
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
				return nil, errno
			}
			at, ids = int(fd), append(ids, info.id)
		}
	}
	return ids, nil
}

// kernelTable reads the mounts of namespaces by listmount(2) and statmount(2).
type kernelTable struct{ buffer []byte }

// mountRequest is struct mnt_id_req of linux/mount.h.
type mountRequest struct {
	size, _      uint32
	mount, param uint64
	mntNamespace uint64
}

// list returns the unique IDs of all mounts of a namespace.
func (k kernelTable) list(namespace uint64) (all []uint64, err error) {
	const root = ^uint64(0) // LSMT_ROOT
	req := mountRequest{size: uint32(unsafe.Sizeof(mountRequest{})), mount: root, mntNamespace: namespace}
	for {
		var page [256]uint64
		n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&req)), uintptr(unsafe.Pointer(&page[0])),
			uintptr(len(page)), 0, 0, 0)
		switch {
		case errno == unix.ENOENT:
			return all, nil // the namespace is gone, with its mounts
		case errno != 0:
			return nil, errno
		}
		all = append(all, page[:n]...)
		if int(n) < len(page) {
			return all, nil
		}
		req.param = page[n-1] // the next page begins after it
	}
}

// kernelMount is a mount as statmount(2) describes it.
type kernelMount struct {
	device      uint64
	root, point string
	fsType      string
	options     string // of the file system
}

// shows is Shows(m, original).
func (m kernelMount) shows(original *mountinfo.Info) bool {
	return m.device == Device(original) && Within(m.root, original.Root)
}

// mount reads one mount. The error is ENOENT if it is gone.
func (k kernelTable) mount(namespace, id uint64) (m kernelMount, err error) {
	const sbBasic, mntRoot, mntPoint, fsType, mntOpts = 0x1, 0x8, 0x10, 0x20, 0x80
	const needed = sbBasic | mntRoot | mntPoint | fsType
	req := mountRequest{
		size: uint32(unsafe.Sizeof(mountRequest{})), mount: id, mntNamespace: namespace,
		param: needed | mntOpts,
	}
	_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&req)), uintptr(unsafe.Pointer(&k.buffer[0])),
		uintptr(len(k.buffer)), 0, 0, 0)
	if errno != 0 {
		return m, errno
	}
	// struct statmount of linux/mount.h: offsets of numbers, and of strings by where their own offsets are. A string that
	// the mount does not have is not in mask.
	const options, mask, major, minor, typ, root, point, texts = 4, 8, 16, 20, 36, 104, 108, 512
	number := func(at int) uint32 { return binary.NativeEndian.Uint32(k.buffer[at:]) }
	have := binary.NativeEndian.Uint64(k.buffer[mask:])
	if have&needed != needed {
		return m, unix.ENOSYS
	}
	text := func(bit uint64, at int) string {
		if have&bit == 0 {
			return ""
		}
		from := k.buffer[texts+number(at):]
		return string(from[:max(0, bytes.IndexByte(from, 0))])
	}
	return kernelMount{
		device: unix.Mkdev(number(major), number(minor)), fsType: text(fsType, typ), root: text(mntRoot, root),
		point: text(mntPoint, point), options: text(mntOpts, options),
	}, nil
}
