package workload

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pannier/pannier/host/internal/workload/volumesteps"
)

// Release is a release that has to wait: a try failed, and it is tried again.
type Release struct {
	Tries   int       // that failed, since this host has been running; 0: it does not wait
	Since   time.Time // of the first of them
	Error   string    // of the last
	NextAt  time.Time // of the next; zero during one
	Command string    // ends what keeps a volume in use; empty: nothing is known to
}

// waits notes that a try to release the workload has failed; the next is after a pause. It is reported in the log and
// as an event at the first try, the second, the fourth, the eighth and so on.
func (r *run) waits(err error, pause time.Duration) {
	command := ""
	if held := (*volumesteps.InUse)(nil); errors.As(err, &held) {
		command = held.Command
	}
	var now Release
	r.Update(func() {
		if r.retried.Tries == 0 {
			r.retried.Since = time.Now()
		}
		r.retried.Tries++
		r.retried.Error, r.retried.NextAt, r.retried.Command = err.Error(), time.Now().Add(pause), command
		r.rec.Waiting = err.Error()
		now = r.retried
	})
	r.m.failedTries.Add(1)
	if now.Tries&(now.Tries-1) != 0 {
		return
	}
	r.m.log.Warn("the workload is not released yet; this is retried", "workload", r.ref, "tries", now.Tries, "since",
		now.Since.Format(time.RFC3339), "error", err)
	details := map[string]string{"tries": strconv.Itoa(now.Tries)}
	if command != "" {
		details["command"] = command
	}
	r.eventWith("release-waits", fmt.Sprintf("try %d failed, %s after the first: %v", now.Tries,
		time.Since(now.Since).Round(time.Second), err), details)
}

// FailedTries counts the tries to release a workload that failed, since this host has been running.
func (m *Manager) FailedTries() int64 { return m.failedTries.Load() }
