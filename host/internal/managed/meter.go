package managed

import (
	"errors"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/pannier/pannier/host/internal/system/process"
)

// Meter measures what a process and its descendants use, and compares that with limits.
type Meter struct {
	Limits process.Limits
	// MemoryBy and ProcessesBy name who bounds them, as "its limits allow".
	MemoryBy, ProcessesBy string
	Busy                  BusyRule // zero: nothing is busy
	// Tell is called when it is busy, and GiveUp when it exceeds a limit.
	Tell   func(message string)
	GiveUp func(why error)

	exceeded chan struct{}
	why      error // set before exceeded is closed
}

// BusyRule says when a process counts as busy: it has used at least this many cores without a pause for this long.
type BusyRule struct {
	Cores float64
	After time.Duration
}

// ErrLimit means that a process uses more than it may. Such a process gets little time to stop.
var ErrLimit = errors.New("it exceeds a limit")

type overLimit struct{ error }

func (o overLimit) Is(target error) bool { return target == ErrLimit }

const (
	// firstLook is how soon after its start a process is measured. The pause then doubles up to longestLook, and
	// is firstLook again while the process is above half of a limit.
	firstLook   = 50 * time.Millisecond
	longestLook = 2 * time.Second
)

// NewMeter makes a meter, with its fields set as in m.
func NewMeter(m Meter) *Meter {
	m.exceeded = make(chan struct{})
	return &m
}

// Exceeded is closed when the process exceeds a limit: Why names it. A nil meter measures nothing.
func (m *Meter) Exceeded() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.exceeded
}

// Why is an ErrLimit once Exceeded is closed.
func (m *Meter) Why() error { return m.why }

// Run measures until the process has ended, has exceeded a limit, or stop is closed.
func (m *Meter) Run(proc *process.Process, stop <-chan struct{}) {
	var spell busySpell
	for pause := firstLook; ; {
		select {
		case <-proc.Done():
			return
		case <-stop:
			return
		case <-time.After(pause):
		}
		now, at := proc.Usage(), time.Now()
		if m.why = m.exceeds(now); m.why != nil {
			close(m.exceeded)
			if m.GiveUp != nil {
				m.GiveUp(m.why)
			}
			return
		}
		if m.Busy.Cores > 0 && spell.update(at, now.CPU, m.Busy) {
			m.Tell(fmt.Sprintf("process %d has used %.1f cores for %v", proc.PID(), spell.cores(), m.Busy.After))
		}
		if pause = min(2*pause, longestLook); m.nearLimit(now) {
			pause = firstLook
		}
	}
}

// exceeds returns which limit is exceeded, or nil.
func (m *Meter) exceeds(u process.Usage) error {
	switch most := m.Limits; {
	case most.Memory > 0 && u.Memory > most.Memory:
		return overLimit{fmt.Errorf("it uses %s of memory, %s %s", size(u.Memory), m.MemoryBy, size(most.Memory))}
	case most.Processes > 0 && (u.Processes > most.Processes || u.Refused > 0):
		return overLimit{fmt.Errorf("it wants more processes and threads than %s: %d", m.ProcessesBy, most.Processes)}
	}
	return nil
}

func (m *Meter) nearLimit(u process.Usage) bool {
	most := m.Limits
	return most.Memory > 0 && u.Memory > most.Memory/2 || most.Processes > 0 && u.Processes > most.Processes/2
}

func size(bytes int64) string { return humanize.IBytes(uint64(max(bytes, 0))) }

// busySpell is a time in which a process was busy without a pause.
type busySpell struct {
	began, seen       time.Time
	beganCPU, seenCPU time.Duration
	told              bool
}

// update records the CPU time that a process has used so far. It returns true once a spell, when the process
// counts as busy.
func (s *busySpell) update(now time.Time, cpu time.Duration, busy BusyRule) bool {
	idle := float64(cpu-s.seenCPU) < busy.Cores*float64(now.Sub(s.seen))
	if idle || s.seen.IsZero() {
		*s = busySpell{began: now, beganCPU: cpu}
	}
	s.seen, s.seenCPU = now, cpu
	if s.told || now.Sub(s.began) < busy.After {
		return false
	}
	s.told = true
	return true
}

// cores returns how many cores were used on average.
func (s *busySpell) cores() float64 {
	return float64(s.seenCPU-s.beganCPU) / float64(s.seen.Sub(s.began))
}
