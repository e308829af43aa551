package mountuse

import (
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// Detached finds the users of mounts that no namespace has any more (umount2(2), MNT_DETACH), by the IDs that they had
// in a mount table. A kernel before 5.8 tells them of open files only. A User has no Path.
func (s *Search) Detached(ids []int) (found []User, err error) {
	sc, err := Look(nil, nil)
	if err != nil {
		return nil, err
	}
	ids = slices.DeleteFunc(slices.Clone(ids), func(id int) bool { return sc.known[id] })
	if len(ids) == 0 {
		return nil, nil
	}
	for pid, st := range sc.Processes {
		if u := s.bounded(pid, func() *User { return userOfMounts(pid, ids) }); u != nil {
			u.StartTime = st.StartTime
			found = append(found, *u)
		}
	}
	return found, nil
}

// userOfMounts returns what a process, or one of its threads, has of one of some mounts; nil: nothing.
func userOfMounts(pid int, ids []int) *User {
	dir := procfs.Dir(pid)
	for _, thread := range append(liveThreads(dir), dir) {
		for _, name := range []string{"cwd", "root", "exe"} {
			if file := thread + "/" + name; ofMounts(file, ids) {
				text, _ := os.Readlink(file)
				return &User{PID: pid, Why: "its " + name + " is " + text}
			}
		}
		fds, _ := procfs.Numbers(thread + "/fd")
		for _, fd := range fds {
			id, known := mountID(thread + "/fdinfo/" + strconv.Itoa(fd))
			if known && slices.Contains(ids, id) {
				text, _ := os.Readlink(thread + "/fd/" + strconv.Itoa(fd))
				return &User{PID: pid, Why: "it has " + text + " open"}
			}
		}
	}
	mapped, _ := os.ReadDir(dir + "/map_files")
	for _, m := range mapped {
		if file := dir + "/map_files/" + m.Name(); ofMounts(file, ids) {
			text, _ := os.Readlink(file)
			return &User{PID: pid, Why: "it has " + text + " mapped"}
		}
	}
	return nil
}

// ofMounts reports whether a link of /proc leads to a file of one of some mounts. AT_STATX_DONT_SYNC keeps the kernel
// from asking the file system.
func ofMounts(link string, ids []int) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st)
	return err == nil && st.Mask&unix.STATX_MNT_ID != 0 && slices.Contains(ids, int(st.Mnt_id))
}
