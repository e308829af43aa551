package controllers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

// batching is a storage plugin whose first detaches, as many as are made at once, end when the test lets them.
type batching struct {
	plugin
	hold chan struct{}
	// batch answers batches; nil: each volume as a call of its own.
	batch func(reqs []storage.DetachRequest) ([]error, error)
	fails map[string]error // of the volumes

	calls   sync.Mutex
	held    int
	alone   []string // volumes that had a call of their own after the first ones
	batches [][]storage.DetachRequest
}

func (p *batching) do(ctx context.Context, _ string, fn func(ctx context.Context, c storage.Client) error) error {
	return fn(ctx, p)
}

func (p *batching) Detach(ctx context.Context, _ storage.Driver, v storage.Volume, _ string) error {
	p.calls.Lock()
	first := p.held < detachCalls
	if first {
		p.held++
	} else {
		p.alone = append(p.alone, v.Name)
	}
	p.calls.Unlock()
	if first {
		select {
		case <-p.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return p.fails[v.Name]
}

func (p *batching) DetachBatch(_ context.Context, _ storage.Driver, reqs []storage.DetachRequest) ([]error, error) {
	p.calls.Lock()
	p.batches = append(p.batches, reqs)
	p.calls.Unlock()
	if p.batch != nil {
		return p.batch(reqs)
	}
	errs := make([]error, len(reqs))
	for n, r := range reqs {
		errs[n] = p.fails[r.Volume.Name]
	}
	return errs, nil
}

// detachAll detaches so many volumes at once from node n2. The first ones, one in each call, end when the others wait.
func (p *batching) detachAll(t *testing.T, c *Controllers, n int, release func()) (errs []error) {
	t.Helper()
	errs = make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		v := vol
		v.ID = fmt.Sprint("v-", i)
		all.Go(func() {
			called, err := c.Detach(t.Context(), v, "n2", "driver-n2", never)
			if errs[i] = err; !called {
				t.Errorf("%s: the driver was not called", v.ID)
			}
		})
		if i < detachCalls {
			check.Eventually(t, "a call is made", func() bool {
				p.calls.Lock()
				defer p.calls.Unlock()
				return p.held == i+1
			})
		}
	}
	check.Eventually(t, "the others wait", func() bool { return c.waitingDetaches() == n-detachCalls })
	release()
	all.Wait()
	return errs
}

func (c *Controllers) waitingDetaches() (n int) {
	c.detaches.mu.Lock()
	defer c.detaches.mu.Unlock()
	for _, q := range c.detaches.of {
		n += len(q.waiting)
	}
	return n
}

func openBatching(p *batching) *Controllers {
	c := open(&p.plugin, driver("d"))
	c.reach = host{"n1", drivers.Caller{Drivers: registry{"d": driver("d")}, Storage: p.do}}
	c.detaches.reach = c.reach
	return c
}

// Detaches that wait for others share a call, each with its own outcome: one that fails is not taken for detached, and
// its error is that of a call of its own.
func TestDetachesShareACall(t *testing.T) {
	p := &batching{hold: make(chan struct{}), fails: map[string]error{"v-4": status.Error(codes.Aborted, "not now")}}
	errs := p.detachAll(t, openBatching(p), 8, func() { close(p.hold) })
	for i, err := range errs {
		if want := map[bool]codes.Code{true: codes.Aborted, false: codes.OK}[i == 4]; status.Code(err) != want {
			t.Errorf("v-%d: %v", i, err)
		}
	}
	shared := 0
	for _, b := range p.batches {
		shared += len(b)
		for _, r := range b {
			if r.NodeID != "driver-n2" || r.Volume.Secrets["password"] != "of "+r.Volume.Name {
				t.Errorf("the driver was asked %+v", r)
			}
		}
	}
	if shared != 6 || len(p.batches) > 2 || len(p.alone) != 1 || p.alone[0] != "v-4" {
		t.Errorf("%d volumes shared %d calls, and %v had their own", shared, len(p.batches), p.alone)
	}
}

// What a shared call has no answer for gets a call of its own: the plugin is older, or ends in the middle, or gives too
// few answers. After a failed call none is shared for a while.
func TestASharedCallThatFails(t *testing.T) {
	for name, batch := range map[string]func(reqs []storage.DetachRequest) ([]error, error){
		"an older plugin": func([]storage.DetachRequest) ([]error, error) {
			return nil, status.Error(codes.Unimplemented, "unknown method DetachBatch")
		},
		"an older node": func([]storage.DetachRequest) ([]error, error) {
			return nil, status.Error(codes.PermissionDenied, "unknown method")
		},
		"it ends": func(reqs []storage.DetachRequest) ([]error, error) {
			return make([]error, len(reqs)), status.Error(codes.Unavailable, "the connection is closed")
		},
		"no answers": func([]storage.DetachRequest) ([]error, error) { return nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			p := &batching{hold: make(chan struct{}), batch: batch}
			c := openBatching(p)
			for i, err := range p.detachAll(t, c, 6, func() { close(p.hold) }) {
				if err != nil {
					t.Errorf("v-%d: %v", i, err)
				}
			}
			if len(p.alone) != 4 {
				t.Errorf("%v had a call of their own", p.alone)
			}
			before := len(p.batches)
			var all sync.WaitGroup
			for i := range 6 {
				v := vol
				v.ID = fmt.Sprint("later-", i)
				all.Go(func() {
					if _, err := c.Detach(t.Context(), v, "n2", "driver-n2", never); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if name != "no answers" && len(p.batches) != before {
				t.Errorf("%d calls were shared after one that failed", len(p.batches)-before)
			}
		})
	}
}

// A controller that dies in the middle of a shared call detaches nothing for certain: another one is asked for each.
func TestAControllerDiesInASharedCall(t *testing.T) {
	c, m := openMany("n1", "n2", "n3")
	p := &batching{hold: make(chan struct{}), batch: func(reqs []storage.DetachRequest) ([]error, error) {
		m.set("n2", func(d *claim.NodeDriver) { d.Healthy = false })
		return nil, status.Error(codes.Unavailable, "the node is gone")
	}}
	c.detaches.reach = only{c.reach, p}
	c.reach = &firstHeld{reach: c.reach, p: p}
	for i, err := range p.detachAll(t, c, 6, func() { close(p.hold) }) {
		if err != nil {
			t.Errorf("v-%d: %v", i, err)
		}
	}
	if asked := m.asked(); asked["n1"]+asked["n3"] != 4 || asked["n2"] != 0 {
		t.Errorf("calls of their own went to %v", asked)
	}
}

// only sends all calls to one plugin.
type only struct {
	reach
	p storage.Client
}

func (o only) call(ctx context.Context, _ string, _ ability, _ time.Duration, fn call) error {
	return fn(ctx, o.p, driver("d"))
}

// firstHeld sends the first calls to a plugin that holds them.
type firstHeld struct {
	reach
	p *batching
	n atomic.Int32
}

func (f *firstHeld) call(ctx context.Context, id string, need ability, wait time.Duration, fn call) error {
	if f.n.Add(1) <= detachCalls {
		return fn(ctx, f.p, driver("d"))
	}
	return f.reach.call(ctx, id, need, wait, fn)
}

// One volume that hangs holds up those that share its call for a moment only, and its attachment stays locked until the
// shared call has ended.
func TestASharedCallThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		p := &batching{hold: make(chan struct{}), batch: func(reqs []storage.DetachRequest) ([]error, error) {
			<-ended
			return make([]error, len(reqs)), nil
		}}
		c := openBatching(p)
		var all sync.WaitGroup
		detach := func(id string) {
			v := vol
			v.ID = id
			all.Go(func() {
				if _, err := c.Detach(t.Context(), v, "n2", "driver-n2", never); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for i := range 5 {
			detach(fmt.Sprint("v-", i))
		}
		close(p.hold)
		at := time.Now()
		all.Wait()
		if took := time.Since(at); took != defaultPatience || len(p.alone) != 3 {
			t.Errorf("%v had a call of their own after %v", p.alone, took)
		}
		synctest.Wait()
		if n := c.attachments.Len(); n != 3 {
			t.Errorf("%d attachments are locked while the shared call runs", n)
		}
		close(ended)
		synctest.Wait()
		if n := c.attachments.Len(); n != 0 {
			t.Errorf("%d attachments stay locked", n)
		}
	})
}
