package supervisor

import (
	"cmp"
	"time"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/process"
)

// Limits bound what each process of a plugin, together with its children, may use. 0 means the default.
type Limits = process.Limits

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

var defaultBusy = managed.BusyRule{Cores: 0.9, After: time.Minute}

// newMeter makes the meter of a new process.
func (i *instance) newMeter(giveUp func(error)) *managed.Meter {
	by := func(own bool) string {
		if own {
			return "its plugin block allows"
		}
		return "without limits in its plugin block it may have"
	}
	own := i.spec.Limits
	return managed.NewMeter(managed.Meter{
		Limits: i.spec.limits(), MemoryBy: by(own.Memory > 0), ProcessesBy: by(own.Processes > 0),
		Busy: i.sup.busy, Tell: func(message string) { i.set(EventBusy, message, func(*Status) {}) },
		GiveUp: giveUp,
	})
}
