package supervisor

import (
	"time"

	"github.com/pannier/pannier/host/internal/managed"
)

// SetPatience changes how long a plugin may be silent and unhealthy.
func (s *Supervisor) SetPatience(silence, unwell time.Duration) {
	s.silence, s.unwell = silence, unwell
}

// SetLook changes how often the plugin directory is looked at.
func (s *Supervisor) SetLook(every time.Duration) { s.look = every }

// SetSync changes how copies of binaries are written to the disk.
func (s *Supervisor) SetSync(sync func(path string) error) { s.store.Sync = sync }

// SetBusy changes what counts as busy: the number of cores and the time.
func (s *Supervisor) SetBusy(cores float64, after time.Duration) {
	s.busy = managed.BusyRule{Cores: cores, After: after}
}
