package workload

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/test/lib/check"
)

// refuses makes each call fail as a Consul does that lets the host change nothing any more.
func (h *host) refuses(calls ...string) {
	for _, call := range calls {
		h.on(call+":before", 0, fail(codes.PermissionDenied))
	}
}

// What Consul has refused for certain is not undone there. What it may have done is.
func TestWhatConsulRefusedIsNotUndone(t *testing.T) {
	for name, c := range map[string]struct {
		plan   func(h *host)
		undone []string // in Consul
	}{
		"a registration": {
			plan:   func(h *host) { h.refuses("register", "deregister") },
			undone: nil,
		},
		"a registration, after no answer": {
			plan: func(h *host) {
				h.on("register:after", 1, fail(codes.DeadlineExceeded))
				h.on("register:before", 2, fail(codes.PermissionDenied))
			},
			undone: []string{"deregister web"},
		},
		"a token": {
			plan:   func(h *host) { h.refuses("derive", "revoke") },
			undone: []string{"deregister web"},
		},
		"a token, after no answer": {
			plan: func(h *host) {
				h.on("derive:after", 1, fail(codes.DeadlineExceeded))
				h.on("derive:before", 2, fail(codes.PermissionDenied))
			},
			undone: []string{"revoke web", "deregister web"},
		},
		"a token, in doubt": {
			plan:   func(h *host) { h.on("derive:after", 1, fail(codes.Internal)) },
			undone: []string{"revoke web", "deregister web"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, full, "a")
			c.plan(h)
			w, err := h.Start(t.Context(), withServices(spec("w", "a"), sidecar("web")), Options{})
			if !errors.Is(err, ErrFailed) || w.State != Failed || !strings.Contains(err.Error(), "was undone") {
				t.Fatalf("%s, %v", w.State, err)
			}
			for _, call := range []string{"revoke web", "deregister web"} {
				if did, want := h.count(call) > 0, slices.Contains(c.undone, call); did != want {
					t.Errorf("%s: %v, want %v: %q", call, did, want, h.happened())
				}
			}
			h.clean(t)
		})
	}
}

// The host ends before the ledger has forgotten a token that Consul refused. The next one does not ask Consul either.
func TestARefusedTokenIsForgottenLater(t *testing.T) {
	h := newHost(t)
	h.refuses("derive")
	h.on("forget:before", 0, fail(codes.Unavailable))
	w, err := h.Start(t.Context(), withServices(spec("w"), sidecar("web")), Options{})
	if !errors.Is(err, ErrFailed) || w.State != Stopping || len(h.ledger.tokens()) != 1 {
		t.Fatalf("%s, %v", w.State, err)
	}
	h = h.next(t)
	h.refuses("revoke")
	h.open(t)
	h.ended(t, "w")
	h.clean(t)
}

// Consul refuses to make a replacement. The release forgets it, and revokes the token that it was to replace.
func TestARefusedReplacementIsForgotten(t *testing.T) {
	h := newHost(t)
	h.services.Limits.Look, h.services.Limits.ReadBack = 5*time.Millisecond, 50*time.Millisecond
	first := h.start(t, withServices(spec("w"), sidecar("web"))).Services[0].Accessor
	h.refuses("derive")
	check.NoError(t, h.consul.forget())
	h.eventually(t, "w", "refused", func(w Workload) bool { return w.Services[0].Message != "" })
	if tokens := h.ledger.tokens(); len(tokens) != 2 {
		t.Errorf("the ledger has the tokens %+v, want %s and its replacement", tokens, first)
	}
	h.stop(t, "w")
	if forgot, revoked := h.count("forget web"), h.count("revoke web"); forgot != 1 || revoked != 1 {
		t.Errorf("%d tokens were forgotten and %d revoked: %q", forgot, revoked, h.happened())
	}
	h.clean(t)
}

// Consul refuses to undo anything. The release says what ends that, and a start that waits for it says so too. Forced,
// it leaves what Consul keeps: the ledger still has the token, for the sweep.
func TestForcedReleaseLeavesWhatConsulKeeps(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	s := withServices(spec("w", "a"), sidecar("web"))
	h.start(t, s)
	h.refuses("revoke", "deregister")
	go func() { _, _ = h.Stop(context.Background(), ref("w"), "stopped", nil) }()
	h.eventually(t, "w", "waiting for an operator", func(w Workload) bool {
		return w.Release.Command == "pannier workload stop -force w"
	})
	ctx, leave := context.WithCancel(t.Context())
	noted := make(chan string, 100)
	go func() {
		for note := range noted {
			if strings.Contains(note, "pannier workload stop -force w") {
				leave()
			}
		}
	}()
	_, err := h.Start(ctx, s, Options{Progress: func(s Step) { noted <- s.Note }})
	close(noted)
	for _, text := range []string{
		`earlier run of workload "w"`, "since " + time.Now().UTC().Format("2006-"), "revoke the token of service", "-force w",
	} {
		if err == nil || !strings.Contains(err.Error(), text) || !errors.Is(err, context.Canceled) {
			t.Errorf("a start that waits says %v, not %q", err, text)
		}
	}
	if left := h.leftBehind(); len(left) > 0 {
		t.Errorf("without force this is left: %+v", left)
	}

	check.NoError(t, h.Force(ref("w"), "root"))
	bounded, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	_, err = h.Stop(bounded, ref("w"), "again", nil)
	check.NoError(t, err)
	left := h.leftBehind()
	if len(left) != 2 || left[0].Details["by"] != "root" || left[1].Details["by"] != "root" {
		t.Errorf("the events are %+v", left)
	}
	if tokens := h.ledger.tokens(); len(tokens) != 1 || len(h.consul.tokens()) != 1 || len(h.ledger.claims()) > 0 {
		t.Errorf("the ledger has the tokens %+v", tokens)
	}
	h = h.next(t) // which takes it up, once Consul lets it
	h.open(t)
	for late := time.Now().Add(timeout); len(h.ledger.tokens()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the token is not revoked")
		}
	}
}

// leftBehind are the events of what a forced release has left in Consul.
func (h *host) leftBehind() (all []events.Event) {
	for _, e := range h.Events.Recent(1000) {
		if e.Topic == events.TopicService && e.Type == "left-behind" {
			all = append(all, e)
		}
	}
	return all
}
