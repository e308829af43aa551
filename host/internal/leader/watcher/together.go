package watcher

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pannier/pannier/cluster/claim"
)

const (
	// maxTogether is the most volumes that are detached together, half of a driver's calls: of two groups, one is at the
	// driver while the ledger is asked for the other.
	maxTogether = callsPerDependency / 2
	// quick is how long a driver may take for a call whose volumes are detached together. A group takes as long as the
	// slowest of them.
	quick = 50 * time.Millisecond
)

// detaches bounds the calls to each driver, and lets volumes that wait for each other share one. The zero value is
// ready.
type detaches struct {
	// one detaches one volume, several try that for several: where they fail, one does.
	one     func(ctx context.Context, d *detach) error
	several func(ctx context.Context, all []*detach) []error

	groups sync.WaitGroup

	mu sync.Mutex
	of map[string]*detachQueue // by driver
}

// detach is a volume that is to be detached for a claim.
type detach struct {
	claim  claim.Claim
	volume claim.Volume
	done   chan struct{}
	err    error // valid once done is closed
}

// detachQueue is what is to be detached by one driver.
type detachQueue struct {
	waiting []*detach
	calls   int  // volumes for which the driver may be called now, at most callsPerDependency
	groups  int  // that are young: more would take the volumes one by one, as they come
	quick   bool // the last volume that was detached by itself took less than quick
	alone   bool // a group has failed as a whole, as with a plugin or a node that cannot do it
}

// do detaches a volume when it is its turn.
func (q *detaches) do(ctx context.Context, c claim.Claim, v claim.Volume) error {
	d := &detach{claim: c, volume: v, done: make(chan struct{})}
	q.mu.Lock()
	one := q.of[v.PluginID]
	if one == nil {
		one = &detachQueue{}
		if q.of == nil {
			q.of = map[string]*detachQueue{}
		}
		q.of[v.PluginID] = one
	}
	one.waiting = append(one.waiting, d)
	q.next(ctx, one)
	q.mu.Unlock()
	select {
	case <-d.done:
		return d.err
	case <-ctx.Done():
	}
	q.mu.Lock()
	waits := slices.Index(one.waiting, d)
	if waits >= 0 {
		one.waiting = slices.Delete(one.waiting, waits, waits+1)
		q.forget(v.PluginID)
	}
	q.mu.Unlock()
	if waits < 0 {
		<-d.done
		return d.err
	}
	return context.Cause(ctx)
}

// next detaches what waits, as far as there is room. The lock is held.
func (q *detaches) next(ctx context.Context, one *detachQueue) {
	for len(one.waiting) > 0 && one.groups < 2 && one.calls < callsPerDependency {
		room := min(callsPerDependency-one.calls, maxTogether)
		namespace := one.waiting[0].volume.Namespace // not every node may be asked for those of another one
		var group, rest []*detach
		for _, d := range one.waiting {
			if len(group) < room && d.volume.Namespace == namespace {
				group = append(group, d)
			} else {
				rest = append(rest, d)
			}
		}
		one.waiting = rest
		one.calls += len(group)
		one.groups++
		q.groups.Go(func() { q.run(ctx, one, group) })
	}
}

// run detaches the volumes of a group.
func (q *detaches) run(ctx context.Context, one *detachQueue, group []*detach) {
	old := false
	age := func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if !old {
			old = true
			one.groups--
			q.next(ctx, one)
		}
	}
	late := time.AfterFunc(quick, age)
	defer late.Stop()
	defer age()
	ended := func(d *detach, err error) {
		d.err = err
		close(d.done)
		q.mu.Lock()
		defer q.mu.Unlock()
		one.calls--
		if old {
			q.next(ctx, one)
		}
		q.forget(d.volume.PluginID)
	}
	q.mu.Lock()
	together := one.quick && !one.alone && len(group) > 1
	q.mu.Unlock()
	var errs []error
	if together {
		errs = q.several(ctx, group)
		if !slices.Contains(errs, nil) {
			q.mu.Lock()
			one.alone = true
			q.mu.Unlock()
		}
	}
	var rest sync.WaitGroup
	for i, d := range group {
		if together && errs[i] == nil {
			ended(d, nil)
			continue
		}
		rest.Go(func() {
			began := time.Now()
			err := q.one(ctx, d)
			q.mu.Lock()
			one.quick = err == nil && time.Since(began) < quick
			q.mu.Unlock()
			ended(d, err)
		})
	}
	rest.Wait()
}

// forget removes a queue that is not used. The lock is held.
func (q *detaches) forget(driver string) {
	if one := q.of[driver]; one != nil && one.calls == 0 && len(one.waiting) == 0 {
		delete(q.of, driver)
	}
}
