// Package procfs reads what /proc says about processes and threads (proc(5)), and /sys about loop devices.
package procfs

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Root is the directory that has one numbered directory for each process.
const Root = "/proc"

// tick is the unit of times in stat: USER_HZ, which is 100 for every program on Linux.
const tick = 10 * time.Millisecond

// Stat is a process's or a thread's stat file (proc_pid_stat(5)).
type Stat struct {
	PID       int // of a thread: its TID
	State     byte
	Parent    int
	Group     int
	Session   int
	CPU       time.Duration // used by itself, in user and kernel mode
	ChildCPU  time.Duration // used by its children that have ended and were waited for
	Threads   int
	StartTime uint64 // clock ticks since boot; tells a process from a later one with the same number
}

// Ended reports whether nothing but the exit code is left. Other threads of an ended process may still run.
func (s Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// Dir is the directory of a process.
func Dir(pid int) string { return Root + "/" + strconv.Itoa(pid) }

// ReadStat reads the stat file in the directory of a process (Dir) or of a thread (/proc/PID/task/TID). The
// error is os.ErrNotExist or syscall.ESRCH if the process is gone.
func ReadStat(dir string) (Stat, error) {
	data, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return Stat{}, err
	}
	s, err := parseStat(string(data))
	if err != nil {
		return Stat{}, fmt.Errorf("read %s/stat: %w", dir, err)
	}
	return s, nil
}

// parseStat reads "PID (NAME) STATE PARENT GROUP ...". The name may hold anything, parentheses and spaces too, so
// fields count from the last parenthesis.
func parseStat(text string) (s Stat, err error) {
	pid, _, named := strings.Cut(text, " (")
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const state, parent, group, session, utime, stime, cutime, cstime, threads, start = 0, 1, 2, 3, 11, 12, 13, 14, 17, 19
	if !named || len(f) <= start {
		return Stat{}, fmt.Errorf("%q is cut short", text)
	}
	s.State = f[state][0]
	for _, number := range []struct {
		text string
		to   *int
	}{{pid, &s.PID}, {f[parent], &s.Parent}, {f[group], &s.Group}, {f[session], &s.Session}, {f[threads], &s.Threads}} {
		if *number.to, err = strconv.Atoi(number.text); err != nil {
			return Stat{}, err
		}
	}
	for _, used := range []struct {
		text string
		to   *time.Duration
	}{{f[utime], &s.CPU}, {f[stime], &s.CPU}, {f[cutime], &s.ChildCPU}, {f[cstime], &s.ChildCPU}} {
		ticks, err := strconv.ParseInt(used.text, 10, 64)
		if err != nil {
			return Stat{}, err
		}
		*used.to += time.Duration(ticks) * tick
	}
	s.StartTime, err = strconv.ParseUint(f[start], 10, 64)
	return s, err
}

// Processes lists all processes, also processes that have ended and that nobody has waited for yet.
func Processes() ([]Stat, error) {
	pids, err := Numbers(Root)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	all := make([]Stat, 0, len(pids))
	for _, pid := range pids {
		if s, err := ReadStat(Dir(pid)); err == nil { // else it is gone by now
			all = append(all, s)
		}
	}
	return all, nil
}

// Numbers lists the entries of a directory whose names are numbers: the processes in Root, the threads in
// /proc/PID/task, the descriptors in /proc/PID/fd.
func Numbers(dir string) ([]int, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil && len(names) == 0 {
		return nil, err
	}
	found := make([]int, 0, len(names))
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			found = append(found, n)
		}
	}
	return found, nil
}

// Descriptors lists the descriptors of a process that are of one file, such as /dev/fuse.
func Descriptors(pid int, file string) (found []int) {
	dir := Dir(pid) + "/fd/"
	all, _ := Numbers(dir) // none if it is gone
	for _, fd := range all {
		if link, err := os.Readlink(dir + strconv.Itoa(fd)); err == nil && link == file {
			found = append(found, fd)
		}
	}
	return found
}

// MountNamespace is the inode of the mount namespace of the process or thread that has the directory dir
// (namespaces(7)).
func MountNamespace(dir string) (uint64, error) {
	link, err := os.Readlink(dir + "/ns/mnt")
	if err != nil {
		return 0, fmt.Errorf("read the mount namespace of %s: %w", dir, err)
	}
	inode, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "mnt:["), "]"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the mount namespace of %s: %w", dir, err)
	}
	return inode, nil
}

// Command returns the name of a process (proc_pid_comm(5)); empty if it is gone.
func Command(pid int) string {
	name, _ := os.ReadFile(Dir(pid) + "/comm")
	return strings.TrimSpace(string(name))
}

// LoopFiles returns the files of the machine's loop devices, by the devices' names. " (deleted)" follows the path of a
// deleted file. A machine keeps its unused loop devices, a thousand perhaps. /proc/partitions has only those in use.
func LoopFiles() map[string]string {
	files := map[string]string{}
	partitions, _ := os.ReadFile(Root + "/partitions")
	for line := range strings.Lines(string(partitions)) {
		fields := strings.Fields(line)
		if len(fields) != 4 || !strings.HasPrefix(fields[3], "loop") {
			continue
		}
		if text, err := os.ReadFile("/sys/block/" + fields[3] + "/loop/backing_file"); err == nil {
			files[fields[3]] = strings.TrimSuffix(string(text), "\n")
		}
	}
	return files
}
