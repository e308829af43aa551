package conformance

import "time"

// Patience sets how long a plugin has to end: what never ends need not be waited for
// as long as a busy machine may need.
func Patience(d time.Duration) { stopTime, afterCancel = d, d }
