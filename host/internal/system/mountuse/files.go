package mountuse

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/bounded"
	"github.com/pannier/pannier/internal/procfs"
)

// User is a process that has a file or a directory of a place or a copy open, or mapped.
type User struct {
	PID       int
	StartTime uint64 // see procfs.Stat
	Path      string // the scene's path
	Why       string // for people
}

// processTimeout bounds the look at one process: the kernel may block a reader of its maps for as long as the process
// waits for a disk.
const processTimeout = 250 * time.Millisecond

// looks are those at processes, by PID. One that hangs is skipped.
var looks bounded.Calls

// Users finds the users of what is mounted in a scene, except this process and process 1. deep looks at each thread:
// threads may have other open files and directories than their process (clone(2), CLONE_FILES and CLONE_FS).
func (sc *Scene) Users(deep bool) (found []User) {
	if len(sc.ids) == 0 && len(sc.devices) == 0 && len(sc.parts) == 0 {
		return nil
	}
	var mu sync.Mutex
	var workers errgroup.Group
	workers.SetLimit(4)
	self := os.Getpid()
	for pid := range sc.Processes {
		if pid == self || pid == 1 {
			continue
		}
		workers.Go(func() error {
			if u := sc.userOf(pid, deep); u != nil {
				mu.Lock()
				defer mu.Unlock()
				found = append(found, *u)
			}
			return nil
		})
	}
	_ = workers.Wait() // nothing returns an error
	return found
}

func (sc *Scene) userOf(pid int, deep bool) *User {
	dir := procfs.Dir(pid)
	var found *User
	err := looks.Do(strconv.Itoa(pid), processTimeout, func() error {
		dirs := []string{dir}
		if _, err := stat(dir+"/root", 0); deep || err != nil { // it has ended, and its threads may not
			dirs = append(dirs, liveThreads(dir)...)
		}
		for _, dir := range dirs {
			if path, why := sc.open(dir); path != "" {
				found = &User{PID: pid, StartTime: sc.Processes[pid].StartTime, Path: path, Why: why}
				break
			}
		}
		return nil
	})
	if err != nil {
		return nil
	}
	return found
}

// liveThreads returns the directories of a process's threads that have not ended.
func liveThreads(dir string) (live []string) {
	tids, err := procfs.Numbers(dir + "/task")
	if err != nil {
		return nil
	}
	for _, tid := range tids {
		task := dir + "/task/" + strconv.Itoa(tid)
		if s, err := procfs.ReadStat(task); err == nil && !s.Ended() {
			live = append(live, task)
		}
	}
	return live
}

// open returns the scene's path of which the process or thread in dir has something open, and what.
func (sc *Scene) open(dir string) (path, why string) {
	for _, what := range []string{"cwd", "root", "exe"} {
		if path = sc.of(dir + "/" + what); path != "" {
			text, _ := os.Readlink(dir + "/" + what)
			return path, "its " + what + " is " + text
		}
	}
	fds, _ := procfs.Numbers(dir + "/fd")
	for _, fd := range fds {
		link := dir + "/fd/" + strconv.Itoa(fd)
		if path = sc.of(link); path != "" {
			text, _ := os.Readlink(link)
			return path, "it has " + text + " open"
		}
	}
	return sc.mapped(dir)
}

// of returns the scene's path to which the file belongs that a link of /proc leads to: by the mount through which it
// was opened, or, if no namespace has that any more (umount2(2), MNT_DETACH), by its file system. A block device may
// have any name.
func (sc *Scene) of(link string) string {
	st, err := stat(link, 0) // the mount is told anyway, and FUSE tells only its mounter more
	if err != nil {
		return ""
	}
	if uint32(st.Mode)&unix.S_IFMT == unix.S_IFBLK {
		if path := sc.blocks[unix.Mkdev(st.Rdev_major, st.Rdev_minor)]; path != "" {
			return path
		}
	}
	id := int(st.Mnt_id)
	if path := sc.ids[id]; path != "" {
		return path
	}
	if sc.known[id] {
		return ""
	}
	device := unix.Mkdev(st.Dev_major, st.Dev_minor)
	if path := sc.devices[device]; path != "" {
		return path
	}
	for _, p := range sc.parts {
		if p.device == device && p.has(link) {
			return p.path
		}
	}
	return ""
}

// part is a volume that is gone and is a part of a file system that is mounted elsewhere in this process's namespace.
type part struct {
	path   string // the scene's
	device uint64
	mount  int    // a descriptor
	root   string // the volume's, as the mount shows it
	doubt  bool   // what cannot be told counts
}

// newPart finds a mount that shows more than the volume; ok is false if there is none, or only one that is Remote.
func newPart(table []*mountinfo.Info, volume *mountinfo.Info, path string, doubt bool) (p part, ok bool) {
	for _, m := range table {
		if Device(m) != Device(volume) || m.Root == volume.Root || !Within(volume.Root, m.Root) || Remote(m.FSType) {
			continue
		}
		if fd, err := unix.Open(m.Mountpoint, unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			root := filepath.Join(m.Mountpoint, strings.TrimPrefix(volume.Root, m.Root))
			return part{path, Device(m), fd, root, doubt}, true
		}
	}
	return p, false
}

// has reports whether a file of the file system is the volume's. The mount through which it was opened is gone, so it
// is looked up through the other one, by its handle (open_by_handle_at(2)).
func (p part) has(link string) bool {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, link, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return p.doubt
	}
	fd, err := unix.OpenByHandleAt(p.mount, handle, unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return p.doubt
	}
	defer unix.Close(fd)
	path, err := os.Readlink(Self + "/fd/" + strconv.Itoa(fd))
	return err != nil && p.doubt || Within(path, p.root)
}

// Close must be called when the scene's processes are not looked at any more.
func (sc *Scene) Close() {
	for _, p := range sc.parts {
		_ = unix.Close(p.mount) // nothing was written through it
	}
}

// mapped looks for mapped files (proc_pid_maps(5)).
func (sc *Scene) mapped(dir string) (path, why string) {
	f, err := os.Open(dir + "/maps")
	if err != nil {
		return "", ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// ADDRESS PERMISSIONS OFFSET MAJOR:MINOR INODE PATH. A mapping without a device is no file.
		fields := strings.SplitN(lines.Text(), " ", 6)
		if len(fields) < 6 || fields[3] == "00:00" || !sc.watched[deviceNumber(fields[3], 16)] {
			continue
		}
		from, to, _ := strings.Cut(fields[0], "-")
		name := strings.TrimLeft(from, "0") + "-" + strings.TrimLeft(to, "0")
		if path = sc.of(dir + "/map_files/" + name); path != "" {
			return path, "it has " + strings.TrimLeft(fields[5], " ") + " mapped"
		}
	}
	return "", ""
}

// at returns the scene's path to which a file belongs, by the name that the kernel gives it.
func (sc *Scene) at(file string, namespace uint64) string {
	for _, s := range sc.seen[namespace] {
		if Within(file, s.at) {
			return s.path
		}
	}
	return ""
}
