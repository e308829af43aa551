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

// Limits bound what each process of a plugin, together with its children, may use. 0 means the default.
type Limits struct {
	Memory    int64 // bytes, without the page cache. Default 1 GiB
	OpenFiles int   // per process. Default 4096
	Processes int   // including threads. Default 1024
}

// defaultLimits are far above what a plugin needs, but low enough to protect the host.
var defaultLimits = Limits{Memory: 1 << 30, OpenFiles: 4096, Processes: 1024}

// limits returns the plugin's limits with the defaults filled in.
func (p Plugin) limits() process.Limits {
	return process.Limits{
		Memory:    cmp.Or(p.Limits.Memory, defaultLimits.Memory),
		OpenFiles: cmp.Or(p.Limits.OpenFiles, defaultLimits.OpenFiles),
		Processes: cmp.Or(p.Limits.Processes, defaultLimits.Processes),
	}
}

// EventBusy reports that a plugin has used a full core for a while. The plugin keeps running.
const EventBusy EventType = "busy"

// overLimit is the error of a plugin that exceeds a limit.
type overLimit struct{ error }

// exceeds returns which limit is exceeded, or nil.
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
		return overLimit{fmt.Errorf("it uses %s of memory, %s %s", size(u.Memory), by(p.Limits.Memory > 0),
			size(most.Memory))}
	case u.Processes > most.Processes || u.Refused > 0:
		return overLimit{fmt.Errorf("it wants more processes and threads than %s: %d", by(p.Limits.Processes > 0),
			most.Processes)}
	}
	return nil
}

func size(bytes int64) string { return humanize.IBytes(uint64(max(bytes, 0))) }

const (
	// firstLook is how soon after its start a process is measured. The pause then doubles up to longestLook, and
	// is firstLook again while the process is above half of a limit.
	firstLook   = 50 * time.Millisecond
	longestLook = 2 * time.Second
)

// busyRule says when a plugin counts as busy: it has used at least this many cores without a pause for this long.
type busyRule struct {
	cores float64
	after time.Duration
}

var defaultBusy = busyRule{cores: 0.9, after: time.Minute}

// meter measures what one process of a plugin uses, from its start to its end.
type meter struct {
	spec Plugin
	busy busyRule
	tell func(message string) // called when it is busy
	// giveUp cancels the start, if one is under way.
	giveUp   context.CancelCauseFunc
	exceeded chan struct{} // closed when it exceeds a limit
	why      error         // the overLimit; set before exceeded is closed
}

// newMeter makes the meter of a new process.
func (i *instance) newMeter(giveUp context.CancelCauseFunc) *meter {
	return &meter{
		spec: i.spec, busy: i.sup.busy, giveUp: giveUp, exceeded: make(chan struct{}),
		tell: func(message string) {
			i.set(EventBusy, message, func(*Status) {})
		},
	}
}

// run measures until the process has ended or is detached.
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
		now, at := proc.Usage(), time.Now()
		if err := m.spec.exceeds(now); err != nil {
			m.why = err
			close(m.exceeded)
			m.giveUp(err)
			return
		}
		if spell.update(at, now.CPU, m.busy) {
			m.tell(fmt.Sprintf("process %d has used %.1f cores for %v", proc.PID(), spell.cores(), m.busy.after))
		}
		pause = m.nextLook(pause, now)
	}
}

// nextLook returns the pause after a look that found u.
func (m *meter) nextLook(pause time.Duration, u process.Usage) time.Duration {
	if most := m.spec.limits(); u.Memory > most.Memory/2 || u.Processes > most.Processes/2 {
		return firstLook
	}
	return min(2*pause, longestLook)
}

// busySpell is a time in which a process was busy without a pause.
type busySpell struct {
	began, seen       time.Time
	beganCPU, seenCPU time.Duration
	told              bool
}

// update records the CPU time that a process has used so far. It returns true once a spell, when the process
// counts as busy.
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

// cores returns how many cores were used on average.
func (s *busySpell) cores() float64 {
	return float64(s.seenCPU-s.beganCPU) / float64(s.seen.Sub(s.began))
}

// isOverLimit says whether the process exceeded a limit; such a process gets little time to stop.
func isOverLimit(err error) bool {
	g := overLimit{}
	return errors.As(err, &g)
}
