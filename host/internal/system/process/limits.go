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

// Limits bound what a process may use. 0: no limit. Memory and Processes are for the
// process and all its descendants together; control groups hold them where those can be
// made (see Unlimited), and Usage tells in any case.
type Limits struct {
	// Memory in bytes. The kernel ends the process at a quarter more: who looks at
	// Usage can be first, and tell why.
	Memory int64
	// OpenFiles of each single process; never more than the host itself may have. For a
	// process of another user the host needs CAP_SYS_RESOURCE, or there is no such limit.
	OpenFiles int
	// Processes counts threads too.
	Processes int
}

// oomScore is added to what the kernel goes by when the machine has no memory left
// (proc(5), oom_score_adj; 1000 at most): such a process goes before all others.
const oomScore = "500"

// apply sets what the kernel keeps per process. One that has just ended is no error.
func (l Limits) apply(pid int) error {
	if l.Memory > 0 {
		// A kernel that does not let us only ends another one first.
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
	// Memory in bytes: what they wrote and share, without the pages of files.
	Memory int64
	// CPU is the time that they have used since each began, and their children that
	// have ended.
	CPU time.Duration
	// Processes and their threads.
	Processes int
	// Refused is how often the kernel let them have no more, since the process began.
	Refused int
}

// Usage looks at the process, the rest of its group, and what is in its control groups.
// Of a process that has ended it is what is left of the latter.
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

// family is what members finds, but for descendants that left both the group and the
// control groups: to find them takes a look at every process's environment.
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

// written is the memory in bytes that is not a file's (proc(5), /proc/PID/status).
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
