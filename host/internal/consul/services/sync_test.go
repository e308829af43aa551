package services

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
)

// A host without consul blocks needs no plugin.
func TestNoConsulNoCall(t *testing.T) {
	p := newPlugin()
	synctest.Test(t, func(t *testing.T) {
		r, _ := build(p, nil)
		r.Changed()
		r.Run(t.Context()) // it returns at once
	})
	if len(p.consuls) > 0 {
		t.Errorf("called %v", p.consuls)
	}
}

// Without services Consul is asked once, for what an earlier run left there, and once after each change.
func TestNoServicesAreSyncedOnce(t *testing.T) {
	p := newPlugin()
	left := instance("left")
	p.write("left", &left)
	run(t, p, nil, func(t *testing.T, r *Registrar, _ *world) {
		time.Sleep(time.Hour)
		if syncs, _, _, _ := p.seen(); len(syncs) != 1 || len(p.ids()) != 0 ||
			!slices.Equal(told(r), []string{"removed left"}) {
			t.Errorf("%d syncs, %v is left, %q", len(syncs), p.ids(), told(r))
		}
		r.Changed()
		time.Sleep(time.Hour)
		if syncs, _, _, _ := p.seen(); len(syncs) != 2 {
			t.Errorf("%d syncs", len(syncs))
		}
	})
}

// While nothing changes there is one blocking query after the other, each as long as its call allows.
func TestQueriesBlock(t *testing.T) {
	p := newPlugin()
	run(t, p, []registration.Instance{instance("b"), instance("a")}, func(t *testing.T, _ *Registrar, _ *world) {
		time.Sleep(20*time.Minute + time.Second)
		syncs, _, _, _ := p.seen()
		if n := len(syncs); n < 9 || n > 12 {
			t.Errorf("%d syncs in 20 minutes", n)
		}
		for n, s := range syncs {
			if s.Owner != owner || len(s.Instances) != 2 || s.Instances[0].ID != "a" || s.Instances[0].Owner != owner {
				t.Errorf("sync %d: %+v", n, s)
			}
			if first := n == 0; first != (s.Index == 0) || first != (s.Wait == 0) || s.Wait > syncWait {
				t.Errorf("sync %d: index %d, wait %s", n, s.Index, s.Wait)
			}
		}
		// An instance that another program removes is restored within a second.
		p.touch("a", nil)
		time.Sleep(syncEvery)
		if !slices.Equal(p.ids(), []string{"a", "b"}) {
			t.Errorf("Consul has %v", p.ids())
		}
	})
}

// A token or a CA that is replaced is taken over within two seconds, however long the query would block.
func TestReplacedFiles(t *testing.T) {
	p := newPlugin()
	for n := range p.files {
		p.files[n] = filepath.Join(t.TempDir(), "file")
	}
	run(t, p, []registration.Instance{instance("a")}, func(t *testing.T, _ *Registrar, _ *world) {
		for n, path := range p.files {
			time.Sleep(10 * time.Second)
			before, _, _, _ := p.seen()
			check.NoError(t, os.WriteFile(path, []byte("another"), 0o600))
			time.Sleep(2 * time.Second)
			if now, _, _, _ := p.seen(); len(now) == len(before) || now[len(before)].Index != 0 {
				t.Errorf("file %d: %d syncs, then %d", n, len(before), len(now))
			}
		}
	})
}

// The wait leaves time for the work within the call's deadline, however late the call begins.
func TestTheWaitFitsTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if got := waitWithin(t.Context()); got != syncWait {
			t.Errorf("without a bound: %s", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), callBound)
		defer cancel()
		for at, want := range map[time.Duration]time.Duration{
			0: syncWait, 100 * time.Second: 30 * time.Second,
			149 * time.Second: 0,
		} {
			ctx, cancel := context.WithTimeout(ctx, callBound-at)
			if got := waitWithin(ctx); got != want {
				t.Errorf("after %s: %s, want %s", at, got, want)
			}
			cancel()
		}
	})
}

// A catalog that changes all the time is not queried all the time, nor after each of many changes.
func TestBursts(t *testing.T) {
	p := newPlugin()
	run(t, p, []registration.Instance{instance("a")}, func(t *testing.T, r *Registrar, _ *world) {
		for range 60_000 {
			i := instance("a")
			p.touch("a", &i)
			time.Sleep(time.Millisecond)
		}
		first, _, _, _ := p.seen()
		if n := len(first); n < 30 || n > 62 {
			t.Errorf("%d syncs in a minute of changes to the catalog", n)
		}
		for range 1000 {
			r.Changed()
			time.Sleep(10 * time.Millisecond)
		}
		if then, _, _, _ := p.seen(); len(then)-len(first) < 30 || len(then)-len(first) > 55 {
			t.Errorf("%d syncs in ten seconds of changes to the workloads", len(then)-len(first))
		}
	})
}

func TestUnreachableConsul(t *testing.T) {
	p := newPlugin()
	p.setFailure("sync", status.Error(codes.Unavailable, "no route"))
	run(t, p, []registration.Instance{instance("a")}, func(t *testing.T, r *Registrar, _ *world) {
		time.Sleep(10 * time.Minute)
		_, first, _, _ := p.seen()
		if n := len(first); n < 20 || n > 50 {
			t.Errorf("%d tries in ten minutes", n)
		}
		if pause := first[3].Sub(first[2]); pause > time.Second {
			t.Errorf("the third pause is %s", pause)
		}
		if pause := first[len(first)-1].Sub(first[len(first)-2]); pause < 20*time.Second || pause > 40*time.Second {
			t.Errorf("the last pause is %s", pause)
		}
		if got := r.Problems()["default"]; !strings.Contains(got, `sync with Consul "default" fails`) ||
			!strings.Contains(got, "no route") {
			t.Errorf("the problem: %q", got)
		}
		p.setFailure("sync", status.Error(codes.PermissionDenied, "no policy"))
		time.Sleep(10 * time.Minute)
		if want := []string{"sync-failed default", "sync-failed default"}; !slices.Equal(told(r), want) {
			t.Errorf("told %q", told(r))
		}
		p.setFailure("sync", nil)
		r.Changed() // worth a try at once
		time.Sleep(2 * settle)
		if got := r.Problems()["default"]; got != "" || len(p.ids()) != 1 {
			t.Errorf("after it is back: %q, %v", got, p.ids())
		}
		if all := told(r); !slices.Contains(all, "sync-restored default") || !slices.Contains(all, "registered a") {
			t.Errorf("told %q", all)
		}
	})
}

// A fault of one Consul does not affect another.
func TestConsulsAreApart(t *testing.T) {
	west, east := newPlugin(), newPlugin()
	west.setFailure("sync", errors.New("stalls"))
	synctest.Test(t, func(t *testing.T) {
		r, w := build(west, []string{"west", "east"})
		r.cfg.Registration = func(ctx context.Context, _ string,
			fn func(ctx context.Context, c registration.Registration) error,
		) error {
			return fn(ctx, both{west, east})
		}
		w.set("east", instance("a"))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); r.Run(ctx) }()
		time.Sleep(time.Minute)
		if !slices.Equal(east.ids(), []string{"a"}) || r.Problems()["east"] != "" || r.Problems()["west"] == "" {
			t.Errorf("east has %v and %q, west %q", east.ids(), r.Problems()["east"], r.Problems()["west"])
		}
		cancel()
		<-ended
	})
}

// both passes a sync to the plugin of its Consul.
type both struct {
	*plugin
	east *plugin
}

func (b both) Sync(ctx context.Context, c service.Consul, req registration.SyncRequest) (uint64, []registration.Change,
	error,
) {
	if c.Name == "east" {
		return b.east.Sync(ctx, c, req)
	}
	return b.plugin.Sync(ctx, c, req)
}

func process(interval string) service.Check {
	return service.Check{Type: service.CheckProcess, Interval: interval}
}

func TestHeartbeats(t *testing.T) {
	p := newPlugin()
	run(t, p, nil, func(t *testing.T, r *Registrar, w *world) {
		time.Sleep(time.Hour)
		if _, _, beats, _ := p.seen(); len(beats) > 0 {
			t.Errorf("beats without services: %v", beats)
		}
		w.set("default", instance("slow", process("1m")),
			instance("a", service.Check{Type: service.CheckTCP, Interval: "1s"}, process("30s")),
			instance("none", service.Check{Type: service.CheckHTTP, Interval: "1s"}), instance("odd", process("soon")))
		w.mu.Lock()
		w.beats = map[string][]registration.Beat{"default": {
			{ID: "a", Healthy: true},
			{ID: "none", Healthy: true},
			{ID: "slow"},
		}}
		w.mu.Unlock()
		changed := time.Now()
		r.Changed()
		time.Sleep(time.Minute + time.Second)
		_, _, beats, at := p.seen()
		if n := len(beats); n != 7 || at[0].Sub(changed) != settle || at[1].Sub(at[0]) != 10*time.Second {
			t.Errorf("%d beats in a minute, at %v", n, at)
		}
		if b := beats[0]; len(b) != 2 || b[0] != (registration.Beat{ID: "a", Healthy: true}) || b[1].ID != "slow" {
			t.Errorf("beat %+v", b)
		}
		p.setFailure("heartbeat", status.Error(codes.Unavailable, "gone"))
		time.Sleep(time.Minute)
		if got := r.Problems()["default"]; !strings.Contains(got, `heartbeat with Consul "default" fails`) ||
			!strings.Contains(got, "gone") {
			t.Errorf("the problem: %q", got)
		}
		p.setFailure("heartbeat", nil)
		time.Sleep(10 * time.Second)
		if got := r.Problems()["default"]; got != "" {
			t.Errorf("the problem: %q", got)
		}
		if all := told(r); !slices.Equal(all[len(all)-2:],
			[]string{"heartbeat-failed default", "heartbeat-restored default"}) {
			t.Errorf("told %q", all)
		}
		// A new check gets its health as soon as it is registered, however long that takes.
		p.slow = time.Minute
		w.mu.Lock()
		w.beats["default"] = append(w.beats["default"], registration.Beat{ID: "new", Healthy: true})
		w.mu.Unlock()
		if _, err := r.Register(t.Context(), "default", instance("new", process("1h"))); err != nil {
			t.Error(err)
		}
		there := time.Now()
		time.Sleep(2 * settle)
		if _, _, beats, at := p.seen(); len(beats[len(beats)-1]) != 3 || at[len(at)-1].Sub(there) != settle {
			t.Errorf("beats %v at %v, registered at %v", beats, at, there)
		}
	})
}

// An id that another host has is reported once, is a problem as long as it lasts, and gets no heartbeats.
func TestConflicts(t *testing.T) {
	p := newPlugin()
	p.others = map[string]bool{"a": true}
	first := []registration.Instance{instance("a", process("3s")), instance("b", process("3s"))}
	run(t, p, first, func(t *testing.T, r *Registrar, w *world) {
		w.mu.Lock()
		w.beats = map[string][]registration.Beat{"default": {{ID: "a", Healthy: true}, {ID: "b", Healthy: true}}}
		w.mu.Unlock()
		synctest.Wait()
		time.Sleep(time.Second)
		_, _, before, _ := p.seen()
		for range 100 {
			p.touch("c", nil)
			time.Sleep(syncEvery)
		}
		if all := told(r); !slices.Equal(all, []string{"registered b", "conflict a"}) {
			t.Errorf("told %q", all)
		}
		if a, b := r.Conflict("default", "a"), r.Conflict("default", "b"); a != "it is another's" || b != "" {
			t.Errorf("the conflicts: %q, %q", a, b)
		}
		_, _, beats, _ := p.seen()
		if len(beats) < len(before)+50 {
			t.Errorf("%d beats, there were %d", len(beats), len(before))
		}
		for _, b := range beats[len(before):] {
			if len(b) != 1 || b[0].ID != "b" {
				t.Fatalf("beats of %+v", b)
			}
		}
		p.mu.Lock()
		p.others = nil
		p.mu.Unlock()
		r.Changed()
		time.Sleep(2 * settle)
		if all := told(r); !slices.Equal(all[2:], []string{"registered a"}) || r.Conflict("default", "a") != "" {
			t.Errorf("told %q, the conflict: %q", all, r.Conflict("default", "a"))
		}
	})
}

// A proxy that has another configuration in Consul is reported once, also where it was registered after the workloads
// were listed, and is no change of the service.
func TestReconfigured(t *testing.T) {
	p := newPlugin()
	web := instance("web")
	web.ProxyDigest = "unknown"
	p.digests = map[string]string{"web": "one"}
	run(t, p, []registration.Instance{web}, func(t *testing.T, r *Registrar, w *world) {
		if _, err := r.Register(t.Context(), "default", web); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		p.mu.Lock()
		p.digests["web"] = "two"
		p.write("web", &web)
		p.mu.Unlock()
		time.Sleep(time.Hour)
		w.mu.Lock()
		defer w.mu.Unlock()
		if want := []string{"default web one", "default web two"}; !slices.Equal(w.reconfigured, want) {
			t.Errorf("reported %q, want %q", w.reconfigured, want)
		}
		if events := told(r); slices.Contains(events, "reconfigured web") {
			t.Errorf("the events are %q", events)
		}
	})
}
