package resident

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// monitorSlack is by how much the sleeps of the monitor thread may be longer.
const monitorSlack = 500 * time.Microsecond

// CalmMonitor lets the thread by which Go's runtime monitors the others wake up less often. It sleeps for 20 µs at a
// time while any other thread works; with the kernel's timer slack of 50 µs that makes 14,000 wake-ups in a second of
// work, and takes a tenth of a small computer's time. With monitorSlack it takes half a millisecond until the processor
// of a thread that waits in a system call is given to others, where there are others and all processors are taken.
// Threads that the monitor starts inherit the slack: what they wait for with a timeout may end as much later.
//
// It takes CAP_SYS_NICE, and Linux 4.6 or later (proc(5), timerslack_ns). An error means that nothing has changed.
func CalmMonitor() error {
	if err := calmMonitor(); err != nil {
		return fmt.Errorf("let the runtime's monitor wake up less often: %w", err)
	}
	return nil
}

func calmMonitor() error {
	tasks, err := os.Open("/proc/self/task")
	if err != nil {
		return err
	}
	defer tasks.Close()
	// The kernel lists threads in the order in which they began. The monitor is the first one that the runtime starts.
	threads, err := tasks.Readdirnames(2)
	if err != nil {
		return err
	}
	if len(threads) < 2 {
		return errors.New("there is none")
	}
	return os.WriteFile("/proc/"+threads[1]+"/timerslack_ns", strconv.AppendInt(nil, monitorSlack.Nanoseconds(), 10), 0)
}
