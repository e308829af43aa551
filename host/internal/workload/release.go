package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/system/tracing"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
	"github.com/pannier/pannier/internal/printable"
)

// Release is a release that has to wait: a try failed, and it is tried again.
type Release struct {
	Tries   int       // that failed, since this host has been running; 0: it does not wait
	Since   time.Time // of the first of them
	Error   string    // of the last
	NextAt  time.Time // of the next; zero during one
	Command string    // ends what keeps it, such as the use of a volume; empty: nothing is known to
	Reason  string    // one of ReleaseReasons
}

// Why a release has to wait.
const (
	reasonInUse  = "in_use" // a process, container or mount uses a volume
	reasonDriver = "driver" // a CSI driver cannot be called
	reasonConsul = "consul" // Consul refuses to deregister or revoke
	reasonOther  = "other"
)

// ReleaseReasons are the values of Release.Reason.
func ReleaseReasons() []string { return []string{reasonInUse, reasonDriver, reasonConsul, reasonOther} }

// waits notes that a try to release the workload has failed; the next is after a pause. It is reported in the log and
// as an event at the first try, the second, the fourth, the eighth and so on.
func (r *run) waits(ctx context.Context, err error, pause time.Duration) {
	command, reason := "", reasonOther
	held, refused := (*volumesteps.InUse)(nil), (*servicesteps.Refused)(nil)
	switch {
	case errors.As(err, &held):
		command, reason = held.Command, reasonInUse
	case errors.As(err, &refused):
		command, reason = r.forceCommand(), reasonConsul
	case errors.Is(err, drivers.ErrUnhealthy):
		reason = reasonDriver
	}
	if fails := r.fileSystem(); fails != nil && r.forced.Err() == nil {
		force := r.forceCommand()
		command, err = cmp.Or(command, force), fmt.Errorf("%w; %w; if it stays so: %s", err, fails, force)
	}
	var now Release
	r.Update(func() {
		if r.retried.Tries == 0 {
			r.retried.Since = time.Now()
		}
		r.retried.Tries++
		r.retried.Error, r.retried.NextAt = err.Error(), time.Now().Add(pause)
		r.retried.Command, r.retried.Reason = command, reason
		r.rec.Waiting = err.Error()
		now = r.retried
	})
	r.m.failedTries.Add(1)
	if now.Tries&(now.Tries-1) != 0 {
		return
	}
	r.m.log.Warn("the workload is not released yet; this is retried", append([]any{
		"workload", r.ref, "tries", now.Tries, "since", now.Since.Format(time.RFC3339), "error", err,
	}, tracing.Logged(ctx)...)...)
	details := map[string]string{"tries": strconv.Itoa(now.Tries)}
	if command != "" {
		details["command"] = command
	}
	r.eventWith("release-waits", fmt.Sprintf("try %d failed, %s after the first: %v", now.Tries,
		time.Since(now.Since).Round(time.Second), err), details)
}

// fileSystem returns what is wrong with the file system of one of the workload's volumes that is mounted; nil: nothing.
func (i *instance) fileSystem() error {
	for _, m := range i.snapshot().Mounts {
		if err := volumesteps.Fails(m.Volume, m.HostPath); err != nil {
			return err
		}
	}
	return nil
}

// forceCommand releases the workload without what Consul refuses.
func (i *instance) forceCommand() string {
	command := "pannier workload stop -force "
	if i.ref.Namespace != claim.DefaultNamespace {
		command += "-namespace " + printable.Argument(i.ref.Namespace) + " "
	}
	return command + printable.Argument(i.ref.ID)
}

// releasing explains why a start has to wait for the release of the run before it.
func (i *instance) releasing() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	text := fmt.Sprintf("an earlier run of %s is still being released", i)
	if i.retried.Tries == 0 {
		return text
	}
	text += fmt.Sprintf(", since %s: %s", i.retried.Since.UTC().Format(time.RFC3339), i.retried.Error)
	if i.retried.Command != "" {
		text += "; to end that: " + i.retried.Command
	}
	return text
}

// FailedTries counts the tries to release a workload that failed, since this host has been running.
func (m *Manager) FailedTries() int64 { return m.failedTries.Load() }
