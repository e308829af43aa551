package supervisor

import "time"

// SetPatience changes how long a plugin may be silent and unhealthy.
func (s *Supervisor) SetPatience(silence, unwell time.Duration) {
	s.silence, s.unwell = silence, unwell
}

// SetSync changes how copies of binaries are written to the disk.
func (s *Supervisor) SetSync(sync func(path string) error) { s.store.sync = sync }

// SetBusy changes what counts as busy: the number of cores and the time.
func (s *Supervisor) SetBusy(cores float64, after time.Duration) {
	s.busy = busyRule{cores: cores, after: after}
}
