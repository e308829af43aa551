package resident

import "time"

// Until returns the pause until the clock is at the next multiple of every: at most every, and never 0. What processes
// do every few seconds they do at the same moment then, so an idle machine wakes up once for all of it.
func Until(every time.Duration) time.Duration {
	now := time.Now()
	return now.Truncate(every).Add(every).Sub(now)
}
