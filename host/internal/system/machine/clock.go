package machine

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// What the kernel's interface for time daemons does to the clocks of leases, CLOCK_MONOTONIC and CLOCK_BOOTTIME
// (adjtimex(2), and the kernel's kernel/time/ntp.c).
const (
	nominalTick = 10_000    // microseconds per tick, at 100 ticks per second
	ppm         = 1.0 / 1e6 // parts per million
	adjtimeRate = 500 * ppm // what adjtime(3) may add
	pllOffset   = 0.5       // seconds, the largest offset of the phase-locked loop
	pllShift    = 2         // the loop corrects 1/2^(pllShift + its time constant) of the offset per second
)

// CheckClock returns an error if the present discipline of this machine's clock lets it run faster or slower than
// maxDrift, a part of one. A time daemon that sets tick or frequency cannot: the kernel bounds both. A phase-locked
// loop with a very short time constant can.
func CheckClock(maxDrift float64) error {
	var t unix.Timex
	if _, err := unix.Adjtimex(&t); err != nil {
		return fmt.Errorf("read the discipline of this machine's clock: %w", err)
	}
	if rate := clockRate(&t); rate > maxDrift+ppm {
		return fmt.Errorf("this machine's clock may run %.1f %% fast or slow, and leases are safe up to %.1f %%: give the"+
			" time daemon a longer time constant, or let it set the frequency (now: tick %d, frequency %.0f ppm, status 0x%x,"+
			" time constant %d; see adjtimex(2))", 100*rate, 100*maxDrift, t.Tick, float64(t.Freq)/(1<<16), t.Status, t.Constant)
	}
	return nil
}

// clockRate is the most by which the clock may differ from the rate of its hardware.
func clockRate(t *unix.Timex) float64 {
	rate := math.Abs(float64(t.Tick)/nominalTick-1+float64(t.Freq)/(1<<16)*ppm) + adjtimeRate
	if t.Status&unix.STA_PLL != 0 {
		rate += pllOffset / float64(int64(1)<<(pllShift+max(0, t.Constant)))
	}
	return rate
}
