package workload

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/moby/sys/mountinfo"

	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/internal/notify"
)

// A workload may live as long as its volume is mounted at a path of the host (Options.MountedAt): pannier's mount(8)
// helper starts it, mounts the volume, and ends. An unmount, with the helper or without, ends the workload.

// mountTable is what the host's mount namespace has.
type mountTable struct {
	ctx  context.Context // ends the watch
	live *sync.WaitGroup
	log  hclog.Logger

	once    sync.Once
	changed notify.Broadcast
	mu      sync.Mutex
	mounts  []*mountinfo.Info
}

// mountRetry is the pause after the table could not be read.
const mountRetry = time.Second

// read returns what the host has mounted, and a channel that is closed when that has changed. It is watched from the
// first call on.
func (t *mountTable) read() (all []*mountinfo.Info, changed <-chan struct{}) {
	t.once.Do(func() { t.live.Go(func() { t.watch(t.ctx) }) })
	changed = t.changed.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mounts, changed
}

func (t *mountTable) watch(ctx context.Context) {
	for ctx.Err() == nil {
		err := mountuse.Watch(ctx, func(all []*mountinfo.Info) {
			t.mu.Lock()
			t.mounts = all
			t.mu.Unlock()
			t.changed.Notify()
		})
		if err == nil {
			return
		}
		t.log.Error("the host's mount table cannot be watched: unmounted volumes stay claimed; this is retried", "error", err)
		select {
		case <-time.After(mountRetry):
		case <-ctx.Done():
		}
	}
}

// isMounted reports whether a volume of the workload is mounted where it has to be. The workload's lock is held.
func (i *instance) isMounted(all []*mountinfo.Info) bool {
	for _, v := range i.volumes.Volumes {
		published := slices.IndexFunc(all, func(m *mountinfo.Info) bool { return m.Mountpoint == v.Target })
		if slices.ContainsFunc(all, func(m *mountinfo.Info) bool {
			return m.Mountpoint == i.rec.MountedAt && (published < 0 || mountuse.Shows(m, all[published]))
		}) {
			return true
		}
	}
	return false
}

// awaitUnmounted returns why the workload, whose owner has ended, has to end.
func (r *run) awaitUnmounted(ctx context.Context) error {
	for {
		all, changed := r.m.mountTable.read()
		mounted := true
		r.View(func() { mounted = all == nil || r.isMounted(all) })
		if !mounted { // what was watched may be of before the mount
			all, err := mountuse.Read(mountuse.Self)
			if err != nil {
				return fmt.Errorf("find where it is mounted: %w", err)
			}
			r.View(func() { mounted = r.isMounted(all) })
		}
		if !mounted {
			return fmt.Errorf("it is not mounted at %s any more", r.rec.MountedAt)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.stop:
			return r.stopReason()
		case <-changed:
		}
	}
}
