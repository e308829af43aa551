//go:build !failpoint

package failpoint

import "time"

// Here does nothing in a normal build.
func Here(_, _ string) {}

// Shorter returns d in a normal build.
func Shorter(d time.Duration) time.Duration { return d }
