package mountuse

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

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

// Search looks for users. A process whose look hangs is skipped until that look has ended. The zero value is ready.
type Search struct {
	mu   sync.Mutex
	hung map[int]bool
}

// Users finds the users of what is mounted in a scene, except this process and process 1. deep looks at each thread:
// threads may have other open files and directories than their process (clone(2), CLONE_FILES and CLONE_FS).
func (s *Search) Users(sc *Scene, deep bool) (found []User) {
	if len(sc.ids) == 0 {
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
			if u := s.bounded(pid, func() *User { return sc.userOf(pid, deep) }); u != nil {
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

// bounded stops waiting for a look after processTimeout. The look itself cannot be cancelled.
func (s *Search) bounded(pid int, look func() *User) *User {
	s.mu.Lock()
	if s.hung[pid] {
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	answer := make(chan *User, 1)
	go func() {
		answer <- look()
		s.mu.Lock()
		delete(s.hung, pid)
		s.mu.Unlock()
	}()
	timeout := time.NewTimer(processTimeout)
	defer timeout.Stop()
	select {
	case u := <-answer:
		return u
	case <-timeout.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case u := <-answer:
		return u
	default:
		if s.hung == nil {
			s.hung = map[int]bool{}
		}
		s.hung[pid] = true
		return nil
	}
}

func (sc *Scene) userOf(pid int, deep bool) *User {
	dir := procfs.Dir(pid)
	st := sc.Processes[pid]
	dirs := []string{dir}
	if deep || st.Ended() {
		dirs = append(dirs, liveThreads(dir)...)
	}
	for _, dir := range dirs {
		if path, why := sc.open(dir, sc.Namespaces[pid]); path != "" {
			return &User{PID: pid, StartTime: st.StartTime, Path: path, Why: why}
		}
	}
	return nil
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
func (sc *Scene) open(dir string, namespace uint64) (path, why string) {
	for _, what := range []string{"cwd", "root", "exe"} {
		if text, err := os.Readlink(dir + "/" + what); err == nil {
			if path = sc.at(text, namespace); path != "" {
				return path, "its " + what + " is " + text
			}
		}
	}
	fds, _ := procfs.Numbers(dir + "/fd")
	for _, fd := range fds {
		name := strconv.Itoa(fd)
		text, err := os.Readlink(dir + "/fd/" + name)
		if err != nil || !strings.HasPrefix(text, "/") {
			continue // a pipe, a socket and the like
		}
		if path = sc.openFile(dir, name); path != "" {
			return path, "it has " + text + " open"
		}
	}
	return sc.mapped(dir, namespace)
}

// openFile returns the scene's path of an open file, by the mount through which it was opened.
func (sc *Scene) openFile(dir, fd string) string {
	id, ok := mountID(dir + "/fdinfo/" + fd)
	if !ok {
		return ""
	}
	if path := sc.ids[id]; path != "" {
		return path
	}
	known := sc.known[id]
	if known && len(sc.blocks) == 0 {
		return ""
	}
	// A mount that was detached while files of it were open is in no table, and a block device may have other names:
	// only stat(2) knows. AT_STATX_DONT_SYNC keeps the kernel from asking the file system.
	var st unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, dir+"/fd/"+fd, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE,
		&st) != nil {
		return ""
	}
	if uint32(st.Mode)&unix.S_IFMT == unix.S_IFBLK {
		return sc.blocks[unix.Mkdev(st.Rdev_major, st.Rdev_minor)]
	}
	if known {
		return ""
	}
	return sc.devices[unix.Mkdev(st.Dev_major, st.Dev_minor)]
}

// mountID reads proc_pid_fdinfo(5).
func mountID(file string) (int, bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			id, err := strconv.Atoi(strings.TrimSpace(text))
			return id, err == nil
		}
	}
	return 0, false
}

// mapped looks for mapped files (proc_pid_maps(5)).
func (sc *Scene) mapped(dir string, namespace uint64) (path, why string) {
	f, err := os.Open(dir + "/maps")
	if err != nil {
		return "", ""
	}
	defer f.Close()
	last := ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// ADDRESS PERMISSIONS OFFSET MAJOR:MINOR INODE PATH
		line := lines.Text()
		slash := strings.IndexByte(line, '/')
		if slash < 0 || line[slash:] == last {
			continue
		}
		last = line[slash:]
		if path = sc.at(last, namespace); path != "" {
			return path, "it has " + last + " mapped"
		}
		if f := strings.Fields(line[:slash]); len(f) > 3 {
			if path = sc.devices[mapDevice(f[3])]; path != "" {
				return path, "it has " + last + " mapped"
			}
		}
	}
	return "", ""
}

// mapDevice reads "MAJOR:MINOR", in hexadecimal.
func mapDevice(text string) uint64 {
	high, low, _ := strings.Cut(text, ":")
	major, err := strconv.ParseUint(high, 16, 32)
	minor, minorErr := strconv.ParseUint(low, 16, 32)
	if err != nil || minorErr != nil {
		return 0
	}
	return unix.Mkdev(uint32(major), uint32(minor))
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
