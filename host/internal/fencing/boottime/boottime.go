// Package boottime tells the time since boot (CLOCK_BOOTTIME, clock_gettime(2)). That clock is never set, continues
// while the machine is suspended, and is the same for all processes of one boot. Leases count on it.
package boottime

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Instant is a time in nanoseconds since boot. Zero means none.
type Instant int64

// Now returns the current time.
func Now() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Linux has had this clock since 2.6.39. Without it no lease may be considered valid.
		return math.MaxInt64
	}
	return Instant(ts.Nano())
}

// Add returns the time d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns how much later i is than o.
func (i Instant) Sub(o Instant) time.Duration { return time.Duration(i - o) }

// String formats it as the kernel's log does: in seconds since boot.
func (i Instant) String() string {
	return fmt.Sprintf("%.3fs after boot", time.Duration(i).Seconds())
}
