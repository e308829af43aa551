package child

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// bindAll binds every mount at its destination. All sources are opened first, because a destination may cover another
// source. volumesDir is Plan.VolumesDir.
func bindAll(mounts []Mount, volumesDir string) error {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mount namespace a slave of the host's: %w", err)
	}
	// The descriptors close at the exec, or with the child.
	sources := make([]int, len(mounts))
	for i, m := range mounts {
		var err error
		sources[i], err = openSource(m, volumesDir)
		if err != nil {
			return fmt.Errorf("open the volume's mount %s: %w", m.Source, err)
		}
	}
	// Destinations inside another one come after it.
	order := make([]int, len(mounts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return len(mounts[a].Destination) - len(mounts[b].Destination)
	})
	bound := volumes{}
	for _, i := range order {
		if err := bound.bind(sources[i], mounts[i]); err != nil {
			return fmt.Errorf("bind %s at %s: %w", mounts[i].Source, mounts[i].Destination, err)
		}
	}
	return nil
}

// openSource makes a detached copy of a source's mount. There are no links on the way to a volume's: a driver in a
// container can write there, and must not choose what of the host the workload gets. A block device may be a link.
func openSource(m Mount, volumesDir string) (int, error) {
	const clone = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
	if m.Block || volumesDir == "" || !strings.HasPrefix(m.Source, volumesDir+"/") {
		return unix.OpenTree(unix.AT_FDCWD, m.Source, clone)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, m.Source,
		&unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	return unix.OpenTree(fd, "", clone|unix.AT_EMPTY_PATH)
}

// volumes are the IDs of the workload's own mounts in its namespace.
type volumes map[uint64]bool

// bind attaches a source to the destination's descriptor: no name is looked up twice.
func (v volumes) bind(source int, m Mount) error {
	at, err := v.open(m)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	const here = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	if err := unix.MoveMount(source, "", at, "", here); err != nil {
		return err
	}
	mount := fmt.Sprintf("/proc/self/fd/%d", source)
	if err := unix.Mount("", mount, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make it private: %w", err)
	}
	// The copy has the flags of the volume's own mount.
	var attr unix.MountAttr
	if !m.SUID {
		attr.Attr_set |= unix.MOUNT_ATTR_NOSUID
	}
	if !m.Dev && !m.Block {
		attr.Attr_set |= unix.MOUNT_ATTR_NODEV
	}
	if m.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(source, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("set its flags: %w", err)
	}
	id, err := mountID(source)
	v[id] = true
	return err
}

// open opens a mount's destination, and creates what is missing: directories and, for a device or a file, a file. They
// are created in the host's file system, as by docker run -v. It follows no symbolic link, and outside of the
// workload's own volumes it refuses a directory in which others than root could put something else in the place of the
// next one.
func (v volumes) open(m Mount) (int, error) {
	dir, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	above := "/"
	names := strings.Split(strings.Trim(path.Clean(m.Destination), "/"), "/")
	for i, name := range names {
		enter := enterDir
		if m.Block && i == len(names)-1 {
			enter = enterFile
		}
		next, err := v.enter(dir, above, name, enter)
		err = errors.Join(err, unix.Close(dir))
		if err != nil {
			return -1, err
		}
		dir, above = next, path.Join(above, name)
	}
	return dir, nil
}

// enter opens an entry of a directory, unless another user than root could replace it.
func (v volumes) enter(dir int, above, name string, open func(dir int, name string) (int, error)) (int, error) {
	id, err := mountID(dir)
	if err != nil {
		return -1, err
	}
	var in, entry unix.Stat_t
	if err := unix.Fstat(dir, &in); err != nil {
		return -1, err
	}
	who := ""
	if !v[id] { // else it is the workload's own
		who = writers(&in)
	}
	const advice = "choose a destination whose parent directories only root can write in"
	refused := fmt.Errorf("%s can write in %s (mode %#o), and so replace %s: %s", who, above, in.Mode&0o7777, name, advice)
	sticky := in.Uid == 0 && in.Mode&unix.S_ISVTX != 0 // root's entries can be replaced by root only
	if who != "" && !sticky {
		return -1, refused
	}
	fd, err := open(dir, name)
	if err != nil {
		return -1, fmt.Errorf("%s: %w", path.Join(above, name), err)
	}
	if who != "" {
		if err = unix.Fstat(fd, &entry); err == nil && entry.Uid != 0 {
			err = refused
		}
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// writers names who can write in a directory besides root; empty: nobody. Another user than root who may rule the host
// by sudo counts: the program may be that user's.
func writers(dir *unix.Stat_t) string {
	switch {
	case dir.Uid != 0:
		return fmt.Sprintf("user %d", dir.Uid)
	case dir.Mode&0o002 != 0:
		return "everyone"
	case dir.Mode&0o020 != 0: // with an access control list, what any entry of the list may do (acl(5))
		return fmt.Sprintf("group %d or who is in its access control list", dir.Gid)
	}
	return ""
}

// enterDir opens a directory of another one, and creates it if it is missing.
func enterDir(dir int, name string) (int, error) {
	if err := unix.Mkdirat(dir, name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return -1, err
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) {
		err = fmt.Errorf("%w: if it is a symbolic link, name the directory that it leads to", err)
	}
	return fd, err
}

// enterFile opens a file of a directory, and creates it if it is missing.
func enterFile(dir int, name string) (int, error) {
	f, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	switch {
	case err == nil:
		err = unix.Close(f)
	case errors.Is(err, fs.ErrExist):
		err = nil
	}
	if err != nil {
		return -1, err
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if kind := st.Mode & unix.S_IFMT; err == nil && (kind == unix.S_IFLNK || kind == unix.S_IFDIR) {
		err = errors.New("it is a symbolic link or a directory, and a file is to be bound there")
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// mountID returns the ID of the mount that a descriptor is on.
func mountID(fd int) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, fmt.Errorf("find its mount: %w", err)
	}
	return st.Mnt_id, nil
}
