package services

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/registration"
)

func intended(id string) registration.Instance {
	i := instance(id, process("3s"))
	i.Service.Intentions = []string{"api"}
	return i
}

// A service is registered only while its intentions are written.
func TestIntentionsComeFirst(t *testing.T) {
	p := newPlugin()
	r, _ := build(p, []string{"default"})
	p.setFailure("intentions", status.Error(codes.AlreadyExists, "others have"))
	if _, err := r.Register(t.Context(), "", intended("a")); status.Code(err) != codes.AlreadyExists || len(p.ids()) > 0 {
		t.Errorf("%v is registered, %v", p.ids(), err)
	}
	p.setFailure("intentions", nil)
	// Even a registration that was refused must be undone: the intentions are written.
	p.setFailure("register", status.Error(codes.PermissionDenied, "no"))
	if _, err := r.Register(t.Context(), "", intended("a")); status.Code(err) != codes.Internal ||
		!slices.Equal(p.allowed["a"], []string{"api"}) {
		t.Errorf("the intentions are %v, %v", p.allowed["a"], err)
	}
	p.setFailure("register", nil)
	if _, err := r.Register(t.Context(), "", intended("a")); err != nil {
		t.Error(err)
	}
	gone := intended("a")
	gone.Service.Intentions = nil
	if err := r.SetIntentions(t.Context(), "", gone); err != nil || len(p.allowed["a"]) > 0 {
		t.Errorf("the intentions are %v, %v", p.allowed["a"], err)
	}
}

// A plugin without intentions would let anybody call the service.
func TestAPluginWithoutIntentions(t *testing.T) {
	p := newPlugin()
	r, _ := build(p, []string{"default"})
	p.setFailure("intentions", status.Error(codes.Unimplemented, "unknown method"))
	_, err := r.Register(t.Context(), "", intended("a"))
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "install a newer one") ||
		len(p.ids()) > 0 {
		t.Errorf("%v is registered, %v", p.ids(), err)
	}
	if _, err := r.Register(t.Context(), "", instance("b")); err != nil {
		t.Errorf("without intentions: %v", err)
	}
}

// Intentions that others have written are reported once. The service's checks are kept passing.
func TestIntentionsOfOthers(t *testing.T) {
	p := newPlugin()
	p.closed = map[string]bool{"a": true}
	run(t, p, []registration.Instance{intended("a")}, func(t *testing.T, r *Registrar, w *world) {
		w.mu.Lock()
		w.beats = map[string][]registration.Beat{"default": {{ID: "a", Healthy: true}}}
		w.mu.Unlock()
		synctest.Wait()
		for range 10 {
			p.touch("c", nil)
			time.Sleep(syncEvery)
		}
		if all := told(r); !slices.Equal(all, []string{"registered a", "intentions-conflict a"}) {
			t.Errorf("told %q", all)
		}
		if got := r.Conflict("default", "a"); got != "others say who calls it" {
			t.Errorf("the conflict: %q", got)
		}
		if _, _, beats, _ := p.seen(); len(beats) < 5 {
			t.Errorf("%d beats", len(beats))
		}
		p.mu.Lock()
		p.closed = nil
		p.mu.Unlock()
		r.Changed()
		time.Sleep(2 * settle)
		if got := r.Conflict("default", "a"); got != "" {
			t.Errorf("the conflict: %q", got)
		}
	})
}
