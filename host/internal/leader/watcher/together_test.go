package watcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// driver detaches volumes, each in its own time, and counts for how many it is called at once.
type driver struct {
	mu        sync.Mutex
	takes     func(id string) time.Duration
	fails     func(id string) bool // in a call for several
	now, most int
	ones      []string
	groups    []int
	done      []string
}

func (d *driver) begin(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now += n
	d.most = max(d.most, d.now)
}

func (d *driver) end(n int, done ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now -= n
	d.done = append(d.done, done...)
}

func (d *driver) one(ctx context.Context, of *detach) error {
	d.begin(1)
	d.mu.Lock()
	d.ones = append(d.ones, of.volume.ID)
	d.mu.Unlock()
	select {
	case <-time.After(d.takes(of.volume.ID)):
	case <-ctx.Done():
		d.end(1)
		return context.Cause(ctx)
	}
	d.end(1, of.volume.ID)
	return nil
}

func (d *driver) several(_ context.Context, all []*detach) []error {
	d.begin(len(all))
	errs := make([]error, len(all))
	var done []string
	var longest time.Duration
	const within = 500 * time.Millisecond
	for i, of := range all {
		takes := d.takes(of.volume.ID)
		longest = max(longest, min(takes, within))
		switch {
		case takes > within:
			errs[i] = errors.New("it is pending")
		case of.volume.Namespace != all[0].volume.Namespace:
			errs[i] = errors.New("of another namespace")
		case d.fails != nil && d.fails(of.volume.ID):
			errs[i] = errors.New("not this one")
		default:
			done = append(done, of.volume.ID)
		}
	}
	time.Sleep(longest)
	d.end(len(all), done...)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.groups = append(d.groups, len(all))
	return errs
}

// detachAll detaches n volumes at once, of two namespaces, and returns how long it took.
func (d *driver) detachAll(t *testing.T, n int) time.Duration {
	t.Helper()
	q := &detaches{one: d.one, several: d.several}
	began := time.Now()
	var all sync.WaitGroup
	for i := range n {
		v := claim.Volume{VolumeRef: ref(fmt.Sprintf("v-%03d", i)), PluginID: "d"}
		if i >= n/2 {
			v.Namespace = "other"
		}
		all.Go(func() {
			if err := q.do(t.Context(), claim.Claim{Volume: v.VolumeRef}, v); err != nil {
				t.Errorf("%s: %v", v.VolumeRef, err)
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	q.groups.Wait()
	slices.Sort(d.done)
	if len(d.done) != n || len(slices.Compact(d.done)) != n {
		t.Errorf("detached: %q", d.done)
	}
	if d.most > callsPerDependency || len(q.of) != 0 {
		t.Errorf("the driver is called for %d volumes at once; %d queues are kept", d.most, len(q.of))
	}
	return took
}

// Volumes of a quick driver share calls, and those that a call for several does not detach have one of their own.
func TestVolumesShareCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &driver{
			takes: func(string) time.Duration { return time.Millisecond },
			fails: func(id string) bool { return id == "v-010" || id == "v-099" },
		}
		d.detachAll(t, 100)
		if calls := len(d.groups) + len(d.ones); calls > 25 || !slices.Contains(d.ones, "v-010") ||
			!slices.Contains(d.ones, "v-099") {
			t.Errorf("calls of %v, and for %v", d.groups, d.ones)
		}
		for _, n := range d.groups {
			if n > maxTogether {
				t.Errorf("%d volumes share a call", n)
			}
		}
	})
}

// A slow driver is called for each volume by itself, for as many at once as it may be: none waits for another one.
func TestASlowDriverHasACallForEachVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &driver{takes: func(id string) time.Duration {
			if id == "v-000" {
				return time.Minute
			}
			return time.Second
		}}
		took := d.detachAll(t, 100)
		if len(d.groups) > 0 || took > 61*time.Second {
			t.Errorf("calls of %v, in %s", d.groups, took)
		}
		if d.done[0] != "v-000" || d.most != callsPerDependency {
			t.Errorf("at most %d at once", d.most)
		}
	})
}

// A driver that hangs with some volumes holds up no others.
func TestAHangingDetachHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var last time.Duration
		began := time.Now()
		d := &driver{}
		d.takes = func(id string) time.Duration {
			if id < "v-015" {
				return time.Hour
			}
			mu.Lock()
			defer mu.Unlock()
			last = time.Since(began)
			return time.Millisecond
		}
		d.detachAll(t, 40)
		if last > time.Minute {
			t.Errorf("the last of the others began after %s", last)
		}
	})
}

// Where no call for several volumes succeeds, as with an older plugin, they are not tried again and again.
func TestOlderPluginsHaveACallForEachVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &driver{
			takes: func(string) time.Duration { return time.Millisecond },
			fails: func(string) bool { return true },
		}
		d.detachAll(t, 100)
		if len(d.groups) > 2 || len(d.ones) != 100 {
			t.Errorf("calls of %v, and %d for one", d.groups, len(d.ones))
		}
	})
}

// What waits for its turn, and what is at the driver, ends with the leader's term.
func TestWaitingDetachesEndWithTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &driver{takes: func(string) time.Duration { return time.Hour }}
		q := &detaches{one: d.one, several: d.several}
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("the term has ended")
		var all sync.WaitGroup
		for i := range 40 {
			v := claim.Volume{VolumeRef: ref(fmt.Sprint("v-", i)), PluginID: "d"}
			all.Go(func() {
				if err := q.do(ctx, claim.Claim{Volume: v.VolumeRef}, v); !errors.Is(err, gone) {
					t.Errorf("%s: %v", v.VolumeRef, err)
				}
			})
		}
		synctest.Wait()
		cancel(gone)
		all.Wait()
		q.groups.Wait()
		if len(q.of) != 0 {
			t.Errorf("queues are kept: %v", q.of)
		}
	})
}

// A state change waits for those of the other releases that are under way, but not for long, and not without others.
func TestStateChangesWaitForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sizes []int
		marks := checkpoints{apply: func(_ context.Context, _ string, items ...command.Advance) (
			result command.AdvanceClaimsResult, err error,
		) {
			sizes = append(sizes, len(items))
			return result, nil
		}}
		put := func(n, releases int) time.Duration {
			marks.releases.Store(int32(releases))
			began := time.Now()
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() {
					time.Sleep(time.Duration(i) * time.Millisecond / 10)
					if err := marks.put(t.Context(), command.Advance{Volume: ref(fmt.Sprint(i))}); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			return time.Since(began)
		}
		if took := put(1, 1); took != 0 {
			t.Errorf("a change waits %s for no other", took)
		}
		if took := put(5, 5); took != 400*time.Microsecond {
			t.Errorf("five changes take %s, though no other is to be expected after the last", took)
		}
		if took := put(2, 5); took != gather {
			t.Errorf("two changes wait %s for others that do not come", took)
		}
		if !slices.Equal(sizes, []int{1, 5, 2}) {
			t.Errorf("commands of %v", sizes)
		}
	})
}
