package workload

import (
	"context"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/test/lib/check"
)

// intended is a spec whose service says who may call it.
func intended() Spec {
	s := withServices(spec("w"), sidecar("web"))
	s.Services[0].Intentions = []string{"api"}
	return s
}

// Who may call a service is taken back when it is registered no more, never before.
func TestIntentionsEndAfterTheirService(t *testing.T) {
	h := newHost(t)
	h.start(t, intended())
	if got := h.consul.intentions(); !reflect.DeepEqual(got, map[string][]string{"pannier:here:default:w:web": {"api"}}) {
		t.Errorf("it lets in %v", got)
	}
	h.forget()
	h.stop(t, "w")
	happened := h.happened()
	if ended, closed := slices.Index(happened, "deregister web"), slices.Index(happened, "intentions web"); ended < 0 ||
		closed < ended {
		t.Errorf("calls were made: %q", happened)
	}
	h.clean(t)
}

// A start that fails after the intentions were written takes them back.
func TestIntentionsOfAFailedStart(t *testing.T) {
	h := newHost(t)
	h.on("register:after", 0, fail(codes.Internal))
	if w, err := h.Start(t.Context(), intended(), Options{}); err == nil || w.State != Failed {
		t.Fatalf("%s, %v", w.State, err)
	}
	h.clean(t)
}

// The host ends while it cannot take intentions back. The next one does.
func TestIntentionsAreTakenBackAfterARestart(t *testing.T) {
	h := newHost(t)
	h.start(t, intended())
	h.on("intentions:before", 0, fail(codes.Unavailable))
	go func() { _, _ = h.Stop(context.Background(), ref("w"), "stopped", nil) }()
	h.eventually(t, "w", "retrying", func(w Workload) bool { return w.Release.Tries > 0 })
	h = h.next(t)
	h.open(t)
	h.ended(t, "w")
	h.clean(t)
}

// Consul refuses to take intentions back. The release says so, and what ends it.
func TestForcedReleaseLeavesIntentions(t *testing.T) {
	h := newHost(t)
	h.start(t, intended())
	h.refuses("intentions")
	go func() { _, _ = h.Stop(context.Background(), ref("w"), "stopped", nil) }()
	h.eventually(t, "w", "waiting for an operator", func(w Workload) bool {
		return w.Release.Command == "pannier workload stop -force w"
	})
	check.NoError(t, h.Force(ref("w"), "root"))
	bounded, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	_, err := h.Stop(bounded, ref("w"), "again", nil)
	check.NoError(t, err)
	if left := h.leftBehind(); len(left) != 1 || left[0].Details["intentions"] != "web" {
		t.Errorf("the events are %+v", left)
	}
}
