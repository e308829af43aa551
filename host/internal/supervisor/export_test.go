package supervisor

import "time"

// SetPatience changes how long a plugin may be silent and unwell.
func (s *Supervisor) SetPatience(silence, unwell time.Duration) {
	s.silence, s.unwell = silence, unwell
}
