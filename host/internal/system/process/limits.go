package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// Limits bound what a process may use. 0: no limit. Memory and Processes are for the process and all its descendants
// together. Control groups enforce them if they can be made (see Unlimited), and Usage reports in any case.
type Limits struct {
	// Memory in bytes. The kernel kills the process at a quarter more, so that a caller who watches Usage can stop it
	// first and say why.
	Memory int64
	// OpenFiles of each single process; never more than the host's own limit. For a process of another user the host
	// needs CAP_SYS_RESOURCE, or there is no such limit.
	OpenFiles int
	// Processes counts threads too.
	Processes int
}

// oomScore is added to the score by which the kernel chooses what to kill when the machine has no memory left
// (proc(5), oom_score_adj; at most 1000): such a process goes before all others.
const oomScore = "500"

// apply sets the limits that the kernel enforces per process. It is no error if the process has just ended.
func (l Limits) apply(pid int) error {
	if l.Memory > 0 {
		// If this is not permitted, the kernel only kills another process first.
		_ = os.WriteFile(procfs.Dir(pid)+"/oom_score_adj", []byte(oomScore), 0)
	}
	if l.OpenFiles <= 0 {
		return nil
	}
	var now unix.Rlimit
	err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &now)
	if err == nil {
		most := min(uint64(l.OpenFiles), now.Max)
		err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}, nil)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("limit the open files of process %d: %w", pid, err)
	}
	return nil
}

// Usage is what a process and its descendants use at one moment.
type Usage struct {
	// Memory in bytes: private and shared memory, without the pages of files.
	Memory int64
	// CPU is the time that they, and their children that have ended, have used since each began.
	CPU time.Duration
	// Processes is the number of processes and threads.
	Processes int
	// Refused is how often the kernel refused them more processes since the process began.
	Refused int
}

// Usage measures the process, the rest of its group, and what is in its control groups. If the process has ended, it
// is what is left in the control groups.
func (p *Process) Usage() Usage {
	var u Usage
	for _, s := range p.family() {
		u.Memory += written(s.PID)
		u.CPU += s.CPU + s.ChildCPU
		u.Processes += s.Threads
	}
	u.Refused = refusedForks(p.ref)
	return u
}

// family is like members, but without descendants that have left both the group and the control groups: finding these
// requires reading every process's environment.
func (p *Process) family() []procfs.Stat {
	var found []procfs.Stat
	inside := inCgroups(p.ref)
	for _, pid := range inside {
		if s, err := procfs.ReadStat(procfs.Dir(pid)); err == nil && !s.Ended() {
			found = append(found, s)
		}
	}
	if len(inside) > 0 {
		return found
	}
	if leader, err := procfs.ReadStat(procfs.Dir(p.PID())); err != nil || leader.StartTime != p.ref.StartTime {
		return nil
	}
	for _, s := range living() {
		if s.Group == p.PID() || s.PID == p.PID() {
			found = append(found, s)
		}
	}
	return found
}

// written returns the memory in bytes that is not backed by files (proc(5), /proc/PID/status).
func written(pid int) int64 {
	data, err := os.ReadFile(procfs.Dir(pid) + "/status")
	if err != nil {
		return 0
	}
	var sum int64
	for line := range bytes.Lines(data) {
		name, value, _ := strings.Cut(string(line), ":")
		if name != "RssAnon" && name != "RssShmem" {
			continue
		}
		n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		sum += n << 10
	}
	return sum
}
