package services

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

func TestCallsNameTheirConsulAndOwner(t *testing.T) {
	p := newPlugin()
	r, _ := build(p, []string{"default", "east"})
	proxy, err := r.Register(t.Context(), "", instance("a"))
	if err != nil || proxy != "a-sidecar-proxy" || p.catalog["a"].Owner != owner {
		t.Errorf("registered %+v, %q, %v", p.catalog["a"], proxy, err)
	}
	file, err := r.Bootstrap(t.Context(), "east", bootstrap.Request{ProxyID: proxy})
	if err != nil || string(file.Bootstrap) != "east a-sidecar-proxy" {
		t.Errorf("bootstrap %q, %v", file, err)
	}
	if err := r.Deregister(t.Context(), "default", "a"); err != nil || len(p.catalog) != 0 {
		t.Errorf("deregistered: %v, %v is left", err, p.catalog)
	}
	if want := []string{"default", "east", "default"}; !slices.Equal(p.consuls, want) {
		t.Errorf("called %v, want %v", p.consuls, want)
	}
}

func TestErrorsKeepTheirCode(t *testing.T) {
	p := newPlugin()
	r, _ := build(p, []string{"default"})
	for _, call := range []string{"register", "deregister", "bootstrap"} {
		p.setFailure(call, status.Error(codes.ResourceExhausted, "slow down"))
	}
	_, registered := r.Register(t.Context(), "default", instance("a"))
	_, made := r.Bootstrap(t.Context(), "default", bootstrap.Request{})
	for what, err := range map[string]error{
		"register":   registered,
		"deregister": r.Deregister(t.Context(), "default", "a"), "bootstrap": made,
	} {
		if s, ok := status.FromError(err); !ok || s.Code() != codes.ResourceExhausted {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func named(consul string) *service.Service { return &service.Service{Name: "web", Consul: consul} }

func TestUnknownConsul(t *testing.T) {
	p := newPlugin()
	r, _ := build(p, []string{"east", "default"})
	none, _ := build(p, nil)
	_, registered := r.Register(t.Context(), "west", instance("a"))
	_, made := r.Bootstrap(t.Context(), "west", bootstrap.Request{})
	for _, err := range []error{
		r.Check(named("west")), registered, made, r.Deregister(t.Context(), "west", "a"),
		none.Check(named("")),
	} {
		if !errors.Is(err, ErrUnknownConsul) {
			t.Errorf("%v", err)
		}
	}
	for err, says := range map[error]string{
		r.Check(named("west")): "it has default, east: add `consul \"west\" { address",
		none.Check(named("")):  "it has none: add `consul { address",
	} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%q lacks %q", err, says)
		}
	}
	if err := errors.Join(r.Check(named("")), r.Check(named("default")), r.Check(named("east"))); err != nil {
		t.Error(err)
	}
	if len(p.consuls) > 0 {
		t.Errorf("called %v", p.consuls)
	}
}

// A sync with an old list must not undo a call, and must not have the last word after one, whatever the workloads
// report meanwhile.
func TestCallsWinOverTheSync(t *testing.T) {
	p := newPlugin()
	run(t, p, []registration.Instance{instance("old")}, func(t *testing.T, r *Registrar, w *world) {
		time.Sleep(time.Minute) // a sync waits in Consul now
		p.watch(func(a registration.Action, id string) { t.Errorf("a sync has %s %s", a, id) })
		if _, err := r.Register(t.Context(), "default", instance("new")); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if err := r.Deregister(t.Context(), "default", "old"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if got := p.ids(); !slices.Equal(got, []string{"new"}) {
			t.Errorf("Consul has %v", got)
		}
		// The workloads report the change later; then an instance of that name exists again.
		w.set("default", instance("new"))
		r.Changed()
		time.Sleep(time.Minute)
		w.set("default", instance("new"), instance("old"))
		p.watch(nil)
		r.Changed()
		time.Sleep(time.Minute)
		if got := p.ids(); !slices.Equal(got, []string{"new", "old"}) {
			t.Errorf("Consul has %v", got)
		}
	})
}

// A sync would find what is just being registered missing, and register it once more: it waits.
func TestASyncWaitsForRegistrations(t *testing.T) {
	p := newPlugin()
	p.slow = 5 * time.Second
	run(t, p, nil, func(t *testing.T, r *Registrar, _ *world) {
		time.Sleep(time.Minute)
		p.watch(func(a registration.Action, id string) { t.Errorf("a sync has %s %s", a, id) })
		var all sync.WaitGroup
		for _, id := range []string{"a", "b"} {
			all.Go(func() {
				if _, err := r.Register(t.Context(), "default", instance(id)); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(3 * time.Second)
		}
		all.Wait()
		before, _, _, _ := p.seen()
		time.Sleep(2 * settle)
		if after, _, _, _ := p.seen(); len(after) == len(before) || len(after[len(after)-1].Instances) != 2 {
			t.Errorf("%d syncs before, %d after", len(before), len(after))
		}
	})
}

// Workloads come and go all the time, and their reports lag behind.
func TestManyCallsBesideTheSync(t *testing.T) {
	p := newPlugin()
	run(t, p, nil, func(t *testing.T, r *Registrar, w *world) {
		const workers, rounds = 16, 40
		up := map[string]bool{} // under p.mu
		p.watch(func(a registration.Action, id string) {
			if up[id] == (a == registration.Removed) {
				t.Errorf("a sync has %s %s, up: %v", a, id, up[id])
			}
		})
		set := func(id string, is bool) {
			p.mu.Lock()
			defer p.mu.Unlock()
			up[id] = is
		}
		var working sync.WaitGroup
		for n := range workers {
			working.Go(func() {
				id := fmt.Sprintf("s%02d", n)
				lag := func(ms int) { time.Sleep(time.Duration(ms) * time.Millisecond) }
				for round := range rounds {
					set(id, true)
					if _, err := r.Register(t.Context(), "default", instance(id)); err != nil {
						t.Error(err)
					}
					lag(round % 5 * 100)
					w.list(id, true)
					r.Changed()
					lag(n*37 + round*11)
					set(id, false)
					if err := r.Deregister(t.Context(), "default", id); err != nil {
						t.Error(err)
					}
					lag(round % 7 * 50)
					w.list(id, false)
					lag(round % 3 * 100)
				}
			})
		}
		working.Wait()
		time.Sleep(time.Minute)
		if got := p.ids(); len(got) > 0 {
			t.Errorf("%v is left", got)
		}
	})
}

// The sync removes what could not be deregistered, and does not retry what was refused.
func TestCallsThatFail(t *testing.T) {
	p := newPlugin()
	run(t, p, nil, func(t *testing.T, r *Registrar, w *world) {
		if _, err := r.Register(t.Context(), "default", instance("a")); err != nil {
			t.Error(err)
		}
		w.set("default", instance("a"))
		p.setFailure("deregister", status.Error(codes.Unavailable, "away"))
		p.setFailure("sync", status.Error(codes.Unavailable, "away"))
		if err := r.Deregister(t.Context(), "default", "a"); status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		p.setFailure("sync", nil)
		time.Sleep(time.Minute)
		if got := p.ids(); len(got) > 0 {
			t.Errorf("Consul has %v", got)
		}
		p.setFailure("register", status.Error(codes.InvalidArgument, "no"))
		if _, err := r.Register(t.Context(), "default", instance("refused")); status.Code(err) != codes.InvalidArgument {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		syncs, _, _, _ := p.seen()
		if last := syncs[len(syncs)-1]; len(last.Instances) > 0 {
			t.Errorf("the sync goes on with %v", last.Instances)
		}
	})
}

// A failed change of a running instance leaves it as it is, even if it came back under its old id.
func TestAChangeThatFails(t *testing.T) {
	p := newPlugin()
	run(t, p, []registration.Instance{instance("a")}, func(t *testing.T, r *Registrar, _ *world) {
		err := r.Deregister(t.Context(), "default", "a")
		_, again := r.Register(t.Context(), "default", instance("a"))
		if err != nil || again != nil {
			t.Error(err, again)
		}
		p.setFailure("register", status.Error(codes.InvalidArgument, "no"))
		if _, err := r.Register(t.Context(), "default", instance("a")); status.Code(err) != codes.InvalidArgument {
			t.Error(err)
		}
		r.Changed()
		time.Sleep(time.Minute)
		if got := p.ids(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("Consul has %v", got)
		}
	})
}

// A caller that gives up does not wait for a sync that does not end.
func TestCancelledCallReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := build(newPlugin(), []string{"default"})
		_, _, end := r.keepers["default"].begin(t.Context())
		defer end()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Register(ctx, "default", instance("a")); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := r.Deregister(ctx, "default", "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// What is removed for a node that is gone is that node's, and not this one's.
func TestForget(t *testing.T) {
	p := newPlugin()
	r, _ := build(p, []string{"default", "second"})
	if err := r.Forget(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	syncs, _, _, _ := p.seen()
	for _, s := range syncs {
		if s.Owner != (registration.Owner{Cluster: owner.Cluster, Node: "gone"}) || len(s.Instances) > 0 {
			t.Errorf("Consul was made to have %+v", s)
		}
	}
	if len(syncs) != 2 {
		t.Errorf("%d Consuls were asked, want 2", len(syncs))
	}
}
