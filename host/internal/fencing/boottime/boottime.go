// Package boottime tells the time since the machine was started (CLOCK_BOOTTIME,
// clock_gettime(2)): it is never set, goes on while the machine is suspended, and is the
// same for all processes of one boot. Leases run on it. It imports the standard library
// and golang.org/x/sys only.
package boottime

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Instant is a moment, in nanoseconds since the machine was started. Zero is no moment.
type Instant int64

// Now is the present moment.
func Now() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Linux has the clock since 2.6.39; a lease must not go on without one.
		return math.MaxInt64
	}
	return Instant(ts.Nano())
}

// Add is the moment d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub is how much later i is than o.
func (i Instant) Sub(o Instant) time.Duration { return time.Duration(i - o) }

// String tells it as the kernel's log does: seconds since the start.
func (i Instant) String() string {
	return fmt.Sprintf("%.3fs after the machine's start", time.Duration(i).Seconds())
}
