package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/test/lib/check"
)

// The host is closed or killed at each point between the steps of a service. The next process completes the
// service with one token and healthy, or leaves nothing.
func TestTheHostEndsInTheMiddleOfServices(t *testing.T) {
	s := withServices(spec("w"), sidecar("web"))
	interruptions := map[string]func(t *testing.T, h *host, c child) *host{
		"killed": func(t *testing.T, h *host, c child) *host {
			h.shut(t)
			c.killed(t)
			return h.restart(t)
		},
		"closed": func(t *testing.T, h *host, c child) *host {
			if c.Label == "" {
				h.start(t, s)
				return h.restart(t)
			}
			held := newGate()
			h.on(c.Label, 1, held.hold)
			go func() {
				_, _ = h.Start(context.Background(), s, Options{})
				if c.Stop {
					_, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil)
				}
			}()
			held.await(t)
			return h.restart(t)
		},
	}
	for how, interrupt := range interruptions {
		at := func(t *testing.T, label string, stop bool) {
			h := newHost(t)
			h = interrupt(t, h, child{Dir: h.dir, Spec: s, Label: label, Stop: stop})
			if stop {
				if w := h.ended(t, "w"); w.State != Stopped {
					t.Errorf("it is %s: %s", w.State, w.Message)
				}
				h.clean(t)
				return
			}
			before := h.running(t, "w")
			h.wellIdentified(t, before.Services[0])
			h = h.restart(t)
			after := h.running(t, "w")
			h.wellIdentified(t, after.Services[0])
			if got, want := fmt.Sprint(after.Services, after.Ports), fmt.Sprint(before.Services, before.Ports); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			h.stop(t, "w")
			h.clean(t)
		}
		t.Run(how+" while it runs", func(t *testing.T) { at(t, "", false) })
		for _, when := range []string{":before", ":after"} {
			for _, call := range []string{"claim", "register", "derive", "read", "bootstrap"} {
				t.Run(how+" at "+call+when, func(t *testing.T) { at(t, call+when, false) })
			}
			for _, call := range []string{"end", "revoke", "deregister"} {
				t.Run(how+" at "+call+when, func(t *testing.T) { at(t, call+when, true) })
			}
		}
	}
}

// A login cannot be repeated: a token that was lost in between is replaced, and expires.
func TestTheHostEndsInTheMiddleOfALogin(t *testing.T) {
	for _, label := range []string{"derive:after", "read:before", "bootstrap:before"} {
		t.Run(label, func(t *testing.T) {
			h := newHost(t)
			h.consul.life = time.Hour
			held := newGate()
			h.on(label, 1, held.hold)
			s := withServices(spec("w"), sidecar("web"))
			go func() { _, _ = h.Start(context.Background(), s, Options{}) }()
			held.await(t)
			h = h.next(t)
			h.consul.life = time.Hour
			h.open(t)
			st := h.running(t, "w").Services[0]
			secret, err := os.ReadFile(st.TokenFile)
			check.NoError(t, err)
			if g := h.consul.state.Tokens[st.Accessor]; g.Secret != string(secret) || bootstrapOf(t, st).Token != g.Secret {
				t.Errorf("its token is %+v", g)
			}
			h.stop(t, "w")
			for _, left := range h.consul.tokens() {
				if left.Secret == string(secret) {
					t.Error("it was not revoked")
				}
			}
			check.NoError(t, h.consul.forget())
			h.clean(t)
		})
	}
}

// After a restart, healthy services are left alone, except that their token is read once.
func TestServicesAreRestoredOnce(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	s := withServices(spec("w", "a"), sidecar("web"), plainService("db"))
	h.start(t, s)
	for range 2 {
		h = h.restart(t)
		h.start(t, s) // joins
		h.eventuallyDid(t, "read", 1)
		if got := strings.Join(h.happened(), ", "); got != "read" {
			t.Errorf("calls were made: %s", got)
		}
		if n := len(h.Registered.Instances()["default"]); n != 2 || h.consul.changed() == 0 {
			t.Errorf("%d instances, told %d times", n, h.consul.changed())
		}
	}
	h.stop(t, "w")
	h.clean(t)
}

// eventuallyDid waits until a call has happened n times.
func (h *host) eventuallyDid(t *testing.T, what string, n int) {
	t.Helper()
	for late := time.Now().Add(timeout); h.count(what) < n; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%q did not happen %d times: %v", what, n, h.happened())
		}
	}
}

// Files that are missing or changed, or whose token Consul has lost, are restored while the workload runs.
func TestServicesAreRepairedAfterARestart(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(h *host, s servicesteps.Status) error
		minted bool // it gets another token
	}{
		"token gone": {func(_ *host, s servicesteps.Status) error { return os.Remove(s.TokenFile) }, false},
		"token changed": {func(_ *host,
			s servicesteps.Status,
		) error {
			return os.WriteFile(s.TokenFile, []byte("evil"), 0o400)
		}, false},
		"token is a link": {func(h *host, s servicesteps.Status) error {
			return link(s.TokenFile, filepath.Join(h.dir, "consul.json"))
		}, false},
		"token unreadable": {func(_ *host, s servicesteps.Status) error { return os.Chown(s.TokenFile, 4711, -1) }, false},
		"bootstrap gone":   {func(_ *host, s servicesteps.Status) error { return os.Remove(s.BootstrapFile) }, false},
		"bootstrap changed": {func(_ *host,
			s servicesteps.Status,
		) error {
			return os.WriteFile(s.BootstrapFile, []byte("{}"), 0o400)
		}, false},
		"file beside it gone": {func(_ *host, s servicesteps.Status) error { return os.Remove(beside(s)) }, false},
		"file beside it changed": {func(_ *host, s servicesteps.Status) error {
			return os.WriteFile(beside(s), []byte("evil"), 0o400)
		}, false},
		"all gone": {func(h *host, _ servicesteps.Status) error {
			return os.RemoveAll(filepath.Join(h.dir, "secrets", "default", "w", "web"))
		}, false},
		"forgotten": {func(h *host, _ servicesteps.Status) error { return h.consul.forget() }, true},
		"gone and forgotten": {func(h *host, s servicesteps.Status) error {
			return errors.Join(h.consul.forget(), os.Remove(s.TokenFile))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			before := h.start(t, withServices(spec("w"), sidecar("web"))).Services[0]
			check.NoError(t, c.spoil(h, before))
			h = h.next(t)
			h.services.Limits.ReadBack = 300 * time.Millisecond
			h.open(t)
			if w := h.List()[0]; w.State != Running {
				t.Errorf("it is %s", w.State)
			}
			after := h.eventuallyWell(t, "w")
			if (after.Accessor != before.Accessor) != c.minted {
				t.Errorf("its token was %s and is %s", before.Accessor, after.Accessor)
			}
			if n := h.count("register web"); n > 0 {
				t.Errorf("it was registered %d times", n)
			}
			h.stop(t, "w")
			h.clean(t)
		})
	}
}

func link(path, to string) error { return errors.Join(os.Remove(path), os.Symlink(to, path)) }

// eventuallyWell waits until the workload's service has been repaired.
func (h *host) eventuallyWell(t *testing.T, id string) servicesteps.Status {
	t.Helper()
	var s servicesteps.Status
	h.eventually(t, id, "well", func(w Workload) bool {
		s = w.Services[0]
		all := h.consul.tokens()
		secret, _ := os.ReadFile(s.TokenFile)
		raw, _ := os.ReadFile(s.BootstrapFile)
		info, err := os.Lstat(s.TokenFile)
		aside, _ := os.ReadFile(beside(s))
		return err == nil && string(aside) == h.consul.beside() &&
			info.Sys().(*syscall.Stat_t).Uid == bob && len(all) == 1 && all[0].Accessor == s.Accessor &&
			len(h.ledger.tokens()) == 1 && string(secret) == all[0].Secret && strings.Contains(string(raw), all[0].Secret) &&
			s.Message == ""
	})
	h.wellIdentified(t, s)
	return s
}

// Tokens and files of this node that no record explains are removed when Consul is available. Those of other
// nodes are kept.
func TestUnknownTokensAndFilesAreRemoved(t *testing.T) {
	h := newHost(t)
	h.start(t, withServices(spec("w"), sidecar("web")))
	ctx := t.Context()
	stray := claim.Token{ID: newID(), Workload: ref("w"), Node: here, Service: "web", Consul: "default"}
	other := claim.Token{ID: newID(), Workload: ref("other"), Node: "elsewhere", Service: "web", Consul: "default"}
	_, err := cluster.Apply(ctx, h.ledger.node, command.Start(claim.Run{Ref: other.Workload, Node: other.Node}, nil))
	check.NoError(t, err)
	for _, tok := range []claim.Token{stray, other} {
		check.NoError(t, h.consul.Intend(ctx, tok))
	}
	_, _, err = h.consul.Derive(ctx, stray)
	check.NoError(t, err)
	gone := secretsdir.Place{Namespace: "default", Workload: "gone", Service: "web"}
	check.NoError(t, h.SecretsDir.Write(gone, "si_token", nil, bob))
	h = h.next(t)
	for n := 1; n <= 3; n++ {
		h.on("revoke:before", n, fail(codes.Unavailable))
	}
	h.open(t)
	if _, err := os.Lstat(h.SecretsDir.Folder(gone)); !os.IsNotExist(err) {
		t.Errorf("its secrets are there: %v", err)
	}
	h.eventuallyDid(t, "revoke web", 1)
	left := map[string]bool{}
	for _, tok := range h.ledger.tokens() {
		left[tok.Node] = true
	}
	if !maps.Equal(left, map[string]bool{here: true, "elsewhere": true}) || len(h.consul.tokens()) != 1 {
		t.Errorf("the ledger has %+v, Consul %+v", h.ledger.tokens(), h.consul.tokens())
	}
	w, err := h.Get(ref("w"))
	check.NoError(t, err)
	if all := h.consul.tokens(); all[0].Accessor != w.Services[0].Accessor {
		t.Errorf("Consul has %+v, and the workload %s", all, w.Services[0].Accessor)
	}
	check.NoError(t, h.consul.Revoke(ctx, other, ""))
	h.stop(t, "w")
	h.clean(t)
}

// After a reboot the files are gone with the tmpfs; the rest is removed.
func TestServicesAfterAReboot(t *testing.T) {
	h := newHost(t)
	h.start(t, withServices(spec("w"), sidecar("web")))
	check.NoError(t, os.RemoveAll(filepath.Join(h.dir, "secrets", "default", "w", "web")))
	h = h.next(t)
	h.bootID = "another"
	h.open(t)
	if w := h.ended(t, "w"); w.State != Stopped {
		t.Errorf("it is %s", w.State)
	}
	h.clean(t)
}
