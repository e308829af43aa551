package fence

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/mounttable"
	"github.com/pannier/pannier/internal/procfs"
)

// holder is a process that has something open of what is mounted at a guarded path.
type holder struct {
	pid   int
	start uint64
	guard string // the path; empty: it is a workload's own process
	named Process
	why   string
}

// patience bounds the look at one process: the kernel may let a reader of its maps wait
// for as long as the process waits for a disk.
const patience = 250 * time.Millisecond

// search looks at processes. One whose look hangs is not looked at again until it is over.
type search struct {
	mu   sync.Mutex
	hung map[int]bool
}

// holders finds who holds what is guarded. deep looks at every thread on its own: threads
// may have files and folders that the others do not (clone(2), CLONE_FILES and CLONE_FS).
func (s *search) holders(sc *scene, named []Process, deep bool) (found []holder) {
	for _, p := range named {
		if st, ok := sc.processes[p.PID]; ok && st.StartTime == p.StartTime {
			found = append(found, holder{pid: p.PID, start: st.StartTime, named: p, why: "it is the workload's process"})
		}
	}
	if len(sc.ids) == 0 {
		return found
	}
	pids := make(chan int)
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for pid := range pids {
				h, ok := s.bounded(pid, func() (holder, bool) { return sc.holds(pid, deep) })
				if ok {
					mu.Lock()
					found = append(found, h)
					mu.Unlock()
				}
			}
		})
	}
	self := os.Getpid()
	for pid := range sc.processes {
		if pid != self && pid != 1 {
			pids <- pid
		}
	}
	close(pids)
	workers.Wait()
	return found
}

// bounded gives up waiting for a look after a while; the look itself cannot be ended.
func (s *search) bounded(pid int, look func() (holder, bool)) (holder, bool) {
	type answer struct {
		holder holder
		ok     bool
	}
	s.mu.Lock()
	if s.hung[pid] {
		s.mu.Unlock()
		return holder{}, false
	}
	s.mu.Unlock()
	answers := make(chan answer, 1)
	go func() {
		h, ok := look()
		answers <- answer{h, ok}
		s.mu.Lock()
		delete(s.hung, pid)
		s.mu.Unlock()
	}()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case a := <-answers:
		return a.holder, a.ok
	case <-timeout.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case a := <-answers:
		return a.holder, a.ok
	default:
		s.hung[pid] = true
		return holder{}, false
	}
}

// holds looks at one process.
func (sc *scene) holds(pid int, deep bool) (holder, bool) {
	dir := procfs.Dir(pid)
	st := sc.processes[pid]
	looks := []string{dir}
	if deep || st.Ended() {
		looks = append(looks, liveThreads(dir)...)
	}
	for _, at := range looks {
		if guard, why := sc.open(at, sc.namespaces[pid]); guard != "" {
			return holder{pid: pid, start: st.StartTime, guard: guard, why: why}, true
		}
	}
	return holder{}, false
}

// open tells the guarded path of which a process or a thread has something open, and what.
func (sc *scene) open(dir string, namespace uint64) (guard, why string) {
	for _, what := range []string{"cwd", "root", "exe"} {
		if text, err := os.Readlink(dir + "/" + what); err == nil {
			if guard = sc.at(text, namespace); guard != "" {
				return guard, "its " + what + " is " + text
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
		if guard = sc.openFile(dir, name); guard != "" {
			return guard, "it has " + text + " open"
		}
	}
	return sc.mapped(dir, namespace)
}

// openFile is the guarded path of an open file, by the mount that it was opened through.
func (sc *scene) openFile(dir, fd string) string {
	id, ok := mountID(dir + "/fdinfo/" + fd)
	if !ok {
		return ""
	}
	if guard := sc.ids[id]; guard != "" {
		return guard
	}
	known := sc.known[id]
	if known && len(sc.blocks) == 0 {
		return ""
	}
	// A mount that was detached while files of it were open is in no table, and a block
	// device may have other names: only stat(2) knows. The kernel is told to ask nobody.
	var st unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, dir+"/fd/"+fd, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st) != nil {
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

// mapped looks for files in a process's memory (proc_pid_maps(5)).
func (sc *scene) mapped(dir string, namespace uint64) (guard, why string) {
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
		if guard = sc.at(last, namespace); guard != "" {
			return guard, "it has " + last + " mapped"
		}
		if f := strings.Fields(line[:slash]); len(f) > 3 {
			if guard = sc.devices[mapDevice(f[3])]; guard != "" {
				return guard, "it has " + last + " mapped"
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

// at is the guarded path that a path, as the kernel tells it, leads into.
func (sc *scene) at(path string, namespace uint64) string {
	for _, p := range sc.paths[namespace] {
		if mounttable.Within(path, p.path) {
			return p.guard
		}
	}
	return ""
}
