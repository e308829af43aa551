package volumesteps

import (
	"context"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/test/lib/check"
)

// late is a context in which a context with a timeout has ended from the start, and which goes on itself.
type late struct {
	context.Context //nolint:containedctx // it is one
	told            bool
}

func (l *late) Err() error {
	if l.told {
		return nil
	}
	l.told = true
	return context.DeadlineExceeded
}

func (*late) Done() <-chan struct{} {
	ended := make(chan struct{})
	close(ended)
	return ended
}

// A lock that a repair gets in the moment in which it gives up waiting is released.
func TestLockAtTheEndOfTheWait(t *testing.T) {
	j, err := journal.Open(t.TempDir(), hclog.NewNullLogger())
	check.NoError(t, err)
	t.Cleanup(func() { check.NoError(t, j.Close()) })
	s := New(Config{Journal: j, Layout: mounts.Layout{Dir: t.TempDir()}})
	v := &Volume{Record: &Record{Definition: claim.Definition{
		VolumeRef: claim.VolumeRef{Namespace: "default", ID: "a"}, PluginID: "d",
	}}}
	for range 50 { // whether it gets the lock is left to chance
		check.NoError(t, s.unmountUnstaged(&late{Context: t.Context()}, v))
		if n := s.Locks.Len(); n > 0 {
			t.Fatalf("%d locks are held", n)
		}
	}
}
