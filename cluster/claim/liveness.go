package claim

import (
	"errors"
	"fmt"
	"time"
)

const (
	// MaxDrift is how much faster or slower than true time the clock of a leader or a node may run: 10.1 %. Time daemons
	// correct a clock by slewing it, chronyd by up to 10 %, and the clocks of leases are slewed with it. The kernel
	// bounds its tick to 10 % and its frequency to 500 ppm; 500 ppm are for the hardware (see also machine.CheckClock).
	MaxDrift = 0.101
	// FenceShare is the divisor of the margin that gives the time after which the fence acts. Until then the agent
	// stops the workloads itself, in order.
	FenceShare = 3
	// MinStopTime is the least true time that the fence must have to kill and unmount.
	MinStopTime = time.Second
	// MinHeartbeatTTL bounds how often nodes send heartbeats: three times in that time.
	MinHeartbeatTTL = 300 * time.Millisecond
)

// DefaultLiveness is what the servers use if nothing is configured.
var DefaultLiveness = Liveness{HeartbeatTTL: 30 * time.Second, StopAfter: time.Minute, Margin: 30 * time.Second}

// ErrUnsafe is returned by CheckLiveness for timeouts with which two nodes could use one volume.
var ErrUnsafe = errors.New("not safe")

// CheckLiveness returns ErrUnsafe for timeouts that are not safe if clocks drift by MaxDrift. The error is for the
// operator who configured them.
func CheckLiveness(l Liveness) error {
	switch {
	case l.HeartbeatTTL < MinHeartbeatTTL:
		return fmt.Errorf("%w: heartbeat_ttl is %v, at least %v is needed", ErrUnsafe, l.HeartbeatTTL, MinHeartbeatTTL)
	case l.StopAfter < l.HeartbeatTTL:
		return fmt.Errorf(
			"%w: stop_after (%v) is shorter than heartbeat_ttl (%v): a node would stop its workloads while the servers consider it connected",
			ErrUnsafe, l.StopAfter, l.HeartbeatTTL)
	case l.StopAfter > maxPeriod || l.Margin > maxPeriod:
		return fmt.Errorf("%w: stop_after (%v) or stop_margin (%v) is longer than %v", ErrUnsafe, l.StopAfter, l.Margin,
			maxPeriod)
	case StopTime(l) < MinStopTime:
		return fmt.Errorf(
			"%w: stop_margin %v leaves a node %v to stop what writes, at least %v is needed with clocks that drift by %v %%: set stop_margin to %v or more",
			ErrUnsafe, l.Margin, max(0, StopTime(l)).Round(time.Millisecond), MinStopTime, MaxDrift*100, MinMargin(l.StopAfter))
	}
	return nil
}

// maxPeriod keeps the arithmetic far from overflowing.
const maxPeriod = 30 * 24 * time.Hour

// StopTime is the true time between the latest moment at which the fence acts and the earliest at which the leader
// releases claims: the node's clock is slow and the leader's fast by MaxDrift, and the heartbeat took no time.
func StopTime(l Liveness) time.Duration {
	released := float64(l.StopAfter+l.Margin) / (1 + MaxDrift)
	fenced := float64(l.StopAfter+l.Margin/FenceShare) / (1 - MaxDrift)
	return time.Duration(released - fenced)
}

// MinMargin is the smallest safe margin for a stop_after, in whole tenths of a second.
func MinMargin(stopAfter time.Duration) time.Duration {
	// StopTime is linear in the margin, and solved here for MinStopTime.
	slope := 1/(1+MaxDrift) - 1/(FenceShare*(1-MaxDrift))
	least := (float64(MinStopTime) + float64(stopAfter)*(1/(1-MaxDrift)-1/(1+MaxDrift))) / slope
	const step = 100 * time.Millisecond
	return (time.Duration(least) + step).Truncate(step)
}

// ReleaseAfter is how long after the leader received a node's heartbeat it may release the node's claims.
func ReleaseAfter(l Liveness) time.Duration { return l.StopAfter + l.Margin }

// Longest returns timeouts that satisfy the promises made with a and with b.
func Longest(a, b Liveness) Liveness {
	return Liveness{
		HeartbeatTTL: max(a.HeartbeatTTL, b.HeartbeatTTL), StopAfter: max(a.StopAfter, b.StopAfter), Margin: max(a.Margin,
			b.Margin),
	}
}
