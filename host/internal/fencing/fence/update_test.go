package fence

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/test/lib/check"
)

// An update is not confirmed while the fence does not answer: nothing is mounted on the word of the agent alone.
func TestUpdateWaitsForTheFence(t *testing.T) {
	v, dir := bound(t), folder(t)
	c := open(t, dir)
	setDeadline(t, c, boottime.Now().Add(time.Hour))
	check.Stop(t, fencePID(t, dir))
	ctx, cancel := context.WithTimeout(t.Context(), answerTimeout/10)
	defer cancel()
	err := c.Update(ctx, func(c Change) { c.Protect(v.mounts...) })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a fence that is stopped has confirmed it: %v", err)
	}
}

// The agent starts another fence as soon as the running one is killed, without having anything to tell it.
func TestKilledFenceIsReplacedAtOnce(t *testing.T) {
	v, dir := bound(t), folder(t)
	c := open(t, dir)
	deadline := boottime.Now().Add(time.Hour)
	update(t, c, func(c Change) { c.Protect(v.mounts...); c.SetTimes(Times{Stop: deadline, Deadline: deadline}) })
	killed := fencePID(t, dir)
	must(t, syscall.Kill(killed, syscall.SIGKILL))
	eventually(t, "another fence", func() bool { pid := lockHolder(t, dir); return pid != 0 && pid != killed })
	setDeadline(t, c, deadline) // the new fence answers, and so can be ended
}
