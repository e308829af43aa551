package fence

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/fencing/boottime"
)

// alarm goes off at an instant of CLOCK_BOOTTIME, also at once when the machine wakes up
// after it (timerfd_create(2), TFD_TIMER_ABSTIME): nothing has to be added up, and nobody
// has to look at the clock.
type alarm struct {
	file    *os.File
	rings   chan struct{} // has something in it when the alarm went off
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

// set lets it go off at an instant; zero: never.
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
