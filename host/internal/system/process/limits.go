package process

import (
	"errors"
	"fmt"
	"os"

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
