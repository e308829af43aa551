package fence

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// harden keeps a busy machine from keeping the fence waiting: its memory stays in RAM, it
// runs before all that is not real-time, and it is the last to be killed for memory. Each
// is as far as it is permitted; the error tells what is not.
func harden() error {
	var missing []error
	// On fault: the heap that Go reserves is not to be filled.
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		missing = append(missing, fmt.Errorf("keep its memory in RAM: %w", err))
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0); err != nil {
		missing = append(missing, fmt.Errorf("never be killed for memory: %w", err))
	}
	// A thread that runs for longer without a pause is at fault, and would keep others waiting
	// (getrlimit(2)): the agent starts another fence.
	runaway := unix.Rlimit{Cur: 5_000_000, Max: 5_000_000} // µs
	if err := errors.Join(unix.Setrlimit(unix.RLIMIT_RTTIME, &runaway), eachThread(realTime)); err != nil {
		missing = append(missing, fmt.Errorf("run with a real-time priority: %w", err))
		if err := eachThread(func(tid int) error { return unix.Setpriority(unix.PRIO_PROCESS, tid, -20) }); err != nil {
			missing = append(missing, fmt.Errorf("run before others: %w", err))
		}
	}
	return errors.Join(missing...)
}

// realTime gives a thread the lowest of the real-time priorities (sched(7)). Threads that
// it starts have it too.
func realTime(tid int) error {
	return unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}, 0)
}

func eachThread(do func(tid int) error) error {
	tids, err := procfs.Numbers("/proc/self/task")
	if err != nil {
		return err
	}
	for _, tid := range tids {
		if err := do(tid); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
