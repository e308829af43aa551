package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/pannier/pannier/host/internal/system/process"
)

// Limits bound what each process of a plugin may use, together with what it starts. 0:
// the default.
type Limits struct {
	Memory    int64 // bytes that it wrote, without the pages of files. Default 1 GiB
	OpenFiles int   // of each single process. Default 4096
	Processes int   // and their threads. Default 1024
}

// defaultLimits are far above what a plugin needs, and below what hurts a host.
var defaultLimits = Limits{Memory: 1 << 30, OpenFiles: 4096, Processes: 1024}

// limits are what a plugin is held to.
func (p Plugin) limits() process.Limits {
	return process.Limits{
		Memory:    cmp.Or(p.Limits.Memory, defaultLimits.Memory),
		OpenFiles: cmp.Or(p.Limits.OpenFiles, defaultLimits.OpenFiles),
		Processes: cmp.Or(p.Limits.Processes, defaultLimits.Processes),
	}
}

// EventBusy tells that a plugin has used a full core for a while. It goes on.
const EventBusy EventType = "busy"

// greedy is the end of a plugin that uses more than it may.
type overLimit struct{ error }

// exceeds says why a plugin may not use what it does; nil: it may.
func (p Plugin) exceeds(u process.Usage) error {
	most := p.limits()
	by := func(own bool) string {
		if own {
			return "its plugin block allows"
		}
		return "without limits in its plugin block it may have"
	}
	switch {
	case u.Memory > most.Memory:
		return overLimit{fmt.Errorf("it uses %s of memory, %s %s", size(u.Memory), by(p.Limits.Memory > 0), size(most.Memory))}
	case u.Processes > most.Processes || u.Refused > 0:
		return overLimit{fmt.Errorf("it wants more processes and threads than %s: %d", by(p.Limits.Processes > 0), most.Processes)}
	}
	return nil
}

func size(bytes int64) string { return humanize.IBytes(uint64(max(bytes, 0))) }

const (
	// firstLook is how soon after its start a process is looked at. The pause then
	// doubles up to longestLook, and is as short again while it grows towards its limit.
	firstLook   = 50 * time.Millisecond
	longestLook = 2 * time.Second
)

// busyRule is when a plugin counts as busy: it has used as many cores all the time.
type busyRule struct {
	cores float64
	after time.Duration
}

var defaultBusy = busyRule{cores: 0.9, after: time.Minute}

// meter looks at what one process of a plugin uses, from its start to its end.
type meter struct {
	spec Plugin
	busy busyRule
	tell func(message string) // that it is busy
	// giveUp ends the start that is under way, if there is one.
	giveUp   context.CancelCauseFunc
	exceeded chan struct{} // closed when it uses too much
	why      error         // then; greedy
}

// newMeter is the meter of a new process.
func (i *instance) newMeter(giveUp context.CancelCauseFunc) *meter {
	return &meter{spec: i.spec, busy: i.sup.busy, giveUp: giveUp, exceeded: make(chan struct{}), tell: func(message string) {
		i.set(EventBusy, message, func(*Status) {})
	}}
}

// run looks until the process has ended or is let go of.
func (m *meter) run(proc *process.Process, detached <-chan struct{}) {
	var spell busySpell
	for pause := firstLook; ; {
		select {
		case <-proc.Done():
			return
		case <-detached:
			return
		case <-time.After(pause):
		}
		now := proc.Usage()
		if err := m.spec.exceeds(now); err != nil {
			m.why = err
			close(m.exceeded)
			m.giveUp(err)
			return
		}
		if spell.update(time.Now(), now.CPU, m.busy) {
			m.tell(fmt.Sprintf("process %d has used %.1f cores for %v", proc.PID(), spell.cores(), m.busy.after))
		}
		pause = min(2*pause, longestLook)
		if now.Memory > m.spec.limits().Memory/2 || now.Processes > m.spec.limits().Processes/2 {
			pause = firstLook
		}
	}
}

// spell is a time in which a process was busy without a pause.
type busySpell struct {
	began, seen       time.Time
	beganCPU, seenCPU time.Duration
	told              bool
}

// update takes note of the time that a process has used by now. It says once a spell
// that the process is busy.
func (s *busySpell) update(now time.Time, cpu time.Duration, busy busyRule) bool {
	idle := float64(cpu-s.seenCPU) < busy.cores*float64(now.Sub(s.seen))
	if idle || s.seen.IsZero() {
		*s = busySpell{began: now, beganCPU: cpu}
	}
	s.seen, s.seenCPU = now, cpu
	if s.told || now.Sub(s.began) < busy.after {
		return false
	}
	s.told = true
	return true
}

// cores that were used on average.
func (s *busySpell) cores() float64 {
	return float64(s.seenCPU-s.beganCPU) / float64(s.seen.Sub(s.began))
}

// isOverLimit says whether an end has that reason: such a process is not given long.
func isOverLimit(err error) bool {
	g := overLimit{}
	return errors.As(err, &g)
}
