package workload

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
)

var processCheck = service.Check{Type: service.CheckProcess, Interval: "10s"}

func webTags(h *host) []string { return h.consul.services()["pannier:here:default:w:web"].Service.Tags }

func TestServicesAreChangedInPlace(t *testing.T) {
	base := func() Spec { return withServices(spec("w", "a"), sidecar("web"), plainService("db")) }
	for name, change := range map[string]func(s *Spec){
		"tags":     func(s *Spec) { s.Services[0].Tags = []string{"new"} },
		"meta":     func(s *Spec) { s.Services[0].Meta = map[string]string{"a": "b"} },
		"checks":   func(s *Spec) { s.Services[0].Checks = []service.Check{processCheck} },
		"weights":  func(s *Spec) { s.Services[0].Weights = &service.Weights{Passing: 3} },
		"override": func(s *Spec) { s.Services[0].EnableTagOverride = true },
		"callers":  func(s *Spec) { s.Services[0].Intentions = []string{"api"} },
		"canary":   func(s *Spec) { s.Services[0].CanaryTags, s.Canary = []string{"c"}, true },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, full, "a")
			before := h.start(t, base())
			h.forget()
			s := base()
			change(&s)
			var told collected
			w, err := h.Start(t.Context(), s, Options{Progress: told.progress})
			if err != nil || w.State != Running || !w.Spec.Equal(s) {
				t.Fatalf("%s, %v", w.State, err)
			}
			if got := strings.Join(h.happened(), ", "); got != "register web" {
				t.Errorf("calls were made: %s", got)
			}
			want, err := h.services.Resolve(s.WorkloadRef, s.Services, s.Canary, w.Ports)
			check.NoError(t, err)
			if got := h.consul.services()["pannier:here:default:w:web"].Service; !reflect.DeepEqual(got, want[0]) {
				t.Errorf("got  %+v\nwant %+v", got, want[0])
			}
			if got := h.Registered.Instances()["default"]; len(got) != 2 || !reflect.DeepEqual(got[0].Service, want[0]) {
				t.Errorf("instances: %+v", got)
			}
			if !reflect.DeepEqual(w.Services[0], before.Services[0]) {
				t.Errorf("it was %+v and is %+v", before.Services[0], w.Services[0])
			}
			h = h.restart(t)
			h.start(t, s) // it is the spec now
			if n := h.count("register web"); n > 0 {
				t.Errorf("it was registered %d times again", n)
			}
			h.start(t, base()) // and back
			if got := h.consul.services()["pannier:here:default:w:web"].Service; !reflect.DeepEqual(got.Tags,
				before.Spec.Services[0].Tags) || got.Weights != nil || len(got.Meta) > 0 {
				t.Errorf("back it is %+v", got)
			}
			if left := h.consul.intentions(); len(left) > 0 {
				t.Errorf("back it still lets in %v", left)
			}
			h.stop(t, "w")
			h.clean(t)
		})
	}
}

func TestWhatCannotBeChangedInPlace(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	base := func() Spec { return withServices(spec("w", "a"), sidecar("web")) }
	h.start(t, base())
	for want, change := range map[string]func(s *Spec){
		"other volumes;":        func(s *Spec) { s.Volumes[0].ReadOnly = true },
		"other ports;":          func(s *Spec) { s.Ports = append(s.Ports, specs.Port{Label: "x"}) },
		"other user;":           func(s *Spec) { s.User = "0" },
		"other exec;":           func(s *Spec) { s.Exec = &specs.Exec{Command: "true"} },
		"other sidecars;":       func(s *Spec) { s.Sidecars = []specs.Sidecar{{Command: []string{"envoy"}}} },
		"other services (other": func(s *Spec) { s.Services[0].Address = "192.0.2.1"; s.Services[0].Tags = []string{"x"} },
	} {
		s := base()
		change(&s)
		if _, err := h.Start(t.Context(), s, Options{}); !errors.Is(err, ErrConflict) ||
			!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "pannier workload stop w") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	s := base()
	s.Services[0].Tags = []string{"${nope}"}
	if _, err := h.Start(t.Context(), s, Options{}); !errors.Is(err, specs.ErrInvalid) ||
		!strings.Contains(err.Error(), "unknown variable ${nope}") {
		t.Errorf("got %v", err)
	}
	if w, err := h.Get(ref("w")); err != nil || !w.Spec.Equal(base()) || h.count("register web") != 1 {
		t.Errorf("it was changed: %+v, %v", w.Spec, err)
	}
	h.stop(t, "w")
	h.clean(t)
}

// A change that Consul does not accept yet is reported and retried until Consul accepts it. Meanwhile the
// workload keeps running and is kept in sync as before.
func TestChangeIsRetriedUntilConsulAcceptsIt(t *testing.T) {
	h := newHost(t)
	h.services.Limits.Register = 300 * time.Millisecond
	h.start(t, withServices(spec("w"), sidecar("web")))
	s := withServices(spec("w"), sidecar("web"))
	s.Services[0].Tags = []string{"new"}
	back := make(chan struct{})
	h.on("register:before", 0, func(ctx context.Context) error {
		select {
		case <-back:
			return nil
		default:
			return fail(codes.Unavailable)(ctx)
		}
	})
	for range 2 { // asked again, it says so again
		w, err := h.Start(t.Context(), s, Options{})
		if err == nil || errors.Is(err, ErrFailed) ||
			!strings.Contains(err.Error(), "runs on, but not with the changed spec yet") ||
			!strings.Contains(err.Error(), "the test wants it so") {
			t.Errorf("got %v", err)
		}
		if w.State != Running || !strings.Contains(w.Services[0].Message, `register service "web"`) {
			t.Errorf("it is %s: %+v", w.State, w.Services[0])
		}
	}
	if got := h.Registered.Instances()["default"]; len(got) != 1 || len(got[0].Service.Tags) > 0 {
		t.Errorf("instances: %+v", got)
	}
	h = h.restart(t) // the host that comes next knows of it
	close(back)
	h.eventually(t, "w", "changed", func(Workload) bool { return reflect.DeepEqual(webTags(h), []string{"new"}) })
	h.eventually(t, "w", "well", func(w Workload) bool { return w.Services[0].Message == "" })
	h.stop(t, "w")
	h.clean(t)
}

// A change during a start waits for the start; a stop during a change wins.
func TestAChangeInTheMiddle(t *testing.T) {
	h := newHost(t)
	held := newGate()
	h.on("register:before", 1, held.hold)
	h.on("register:before", 2, newGate().hold) // for ever
	go func() { _, _ = h.Start(context.Background(), withServices(spec("w"), sidecar("web")), Options{}) }()
	held.await(t)
	s := withServices(spec("w"), sidecar("web"))
	s.Services[0].Tags = []string{"new"}
	if _, err := h.Start(t.Context(), s, Options{}); !errors.Is(err, ErrConflict) ||
		!strings.Contains(err.Error(), "is not up yet") {
		t.Errorf("got %v", err)
	}
	close(held.open)
	h.running(t, "w")
	over := make(chan Workload, 1)
	go func() {
		w, _ := h.Start(context.Background(), s, Options{})
		over <- w
	}()
	h.eventually(t, "w", "changing", func(w Workload) bool { return w.Spec.Equal(s) })
	h.stop(t, "w")
	if w := <-over; w.State == Running {
		t.Errorf("the change ended in state %s", w.State)
	}
	h.clean(t)
}
