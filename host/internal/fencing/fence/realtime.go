package fence

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/internal/procfs"
)

// alarm goes off at an instant of CLOCK_BOOTTIME, or as soon as a suspended machine wakes up after it
// (timerfd_create(2), TFD_TIMER_ABSTIME). So the fence need not poll the clock.
type alarm struct {
	file    *os.File
	rings   chan struct{} // receives a value when the alarm goes off
	reading sync.WaitGroup
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	a := &alarm{file: os.NewFile(uintptr(fd), "timer"), rings: make(chan struct{}, 1)}
	a.reading.Go(a.read)
	return a, nil
}

func (a *alarm) read() {
	var expired [8]byte
	for {
		n, err := a.file.Read(expired[:])
		if err != nil {
			return // closed
		}
		if n == len(expired) && binary.NativeEndian.Uint64(expired[:]) > 0 {
			select {
			case a.rings <- struct{}{}:
			default:
			}
		}
	}
}

// set sets the instant at which the alarm goes off; zero: never.
func (a *alarm) set(at boottime.Instant) error {
	conn, err := a.file.SyscallConn()
	if err != nil {
		return err
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}
	var setErr error
	err = conn.Control(func(fd uintptr) { setErr = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil) })
	if err != nil {
		return err
	}
	return setErr
}

func (a *alarm) close() {
	_ = a.file.Close()
	a.reading.Wait()
}

// harden lets the fence act in time on a busy machine: its memory stays in RAM, it runs before everything that is not
// real-time, and the kernel kills it last when memory runs out. It does as much as it is permitted to; the error says
// what it was not.
func harden() error {
	var missing []error
	// Lock pages only when they are first used: the Go runtime reserves far more heap than it uses.
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		missing = append(missing, fmt.Errorf("keep its memory in RAM: %w", err))
	}
	if err := lockProgram(); err != nil {
		missing = append(missing, fmt.Errorf("keep its program in RAM: %w", err))
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0); err != nil {
		missing = append(missing, fmt.Errorf("never be killed for memory: %w", err))
	}
	// A thread that runs this long without blocking is broken and would starve others, so the kernel kills the fence
	// (getrlimit(2)), and the agent starts another one.
	runaway := unix.Rlimit{Cur: 5_000_000, Max: 5_000_000} // µs
	if err := errors.Join(unix.Setrlimit(unix.RLIMIT_RTTIME, &runaway), eachThread(realTime)); err != nil {
		missing = append(missing, fmt.Errorf("run with a real-time priority: %w", err))
		if err := eachThread(func(tid int) error { return unix.Setpriority(unix.PRIO_PROCESS, tid, -20) }); err != nil {
			missing = append(missing, fmt.Errorf("run before others: %w", err))
		}
	}
	return errors.Join(missing...)
}

// lockProgram reads the program's file into memory, to stay there: the disk that it lies on may hang too.
func lockProgram() error {
	maps, err := os.ReadFile("/proc/self/maps") // see proc_pid_maps(5)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		if !strings.Contains(line, " /") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x ", &from, &to); err != nil {
			return fmt.Errorf("read /proc/self/maps: %w", err)
		}
		if _, _, errno := unix.Syscall(unix.SYS_MLOCK, from, to-from, 0); errno != 0 {
			return errno
		}
	}
	return nil
}

// realTime gives a thread the lowest real-time priority (sched(7)). Threads that it starts inherit it.
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
