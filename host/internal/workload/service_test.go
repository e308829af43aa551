package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/host/internal/consul/ports"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
)

// bob owns the secrets of meshSpec's workload.
const bob = 64002

// sidecar is a service with a sidecar.
func sidecar(name string) service.Service {
	return service.Service{Name: name, Port: "http", Connect: &service.Connect{SidecarService: &service.SidecarService{}}}
}

// native returns a service that is its own proxy, and plain a service that is not in the mesh.
func native(name string) service.Service {
	return service.Service{Name: name, Port: "http", Connect: &service.Connect{Native: true}}
}

func plainService(name string) service.Service { return service.Service{Name: name} }

// withServices adds services, and the port that they use, to a spec.
func withServices(s Spec, services ...service.Service) Spec {
	s.Services, s.User = services, fmt.Sprint(bob)
	s.Ports = []specs.Port{{Label: "http"}}
	return s
}

// bootstrapOf reads a service's bootstrap.
func bootstrapOf(t *testing.T, s servicesteps.Status) (f file) {
	t.Helper()
	raw, err := os.ReadFile(s.BootstrapFile)
	check.NoError(t, err)
	check.NoError(t, json.Unmarshal(raw, &f))
	return f
}

// beside is the file that the bootstrap of a proxy names.
func beside(s servicesteps.Status) string {
	return filepath.Join(filepath.Dir(s.BootstrapFile), "beside.json")
}

// wellIdentified checks a service of a running workload: Consul has one token, and its files hold it and belong to the
// user only.
func (h *host) wellIdentified(t *testing.T, s servicesteps.Status) {
	t.Helper()
	all := h.consul.tokens()
	if len(all) != 1 || all[0].Accessor != s.Accessor || all[0].Service != s.Name || len(h.ledger.tokens()) != 1 {
		t.Errorf("Consul has %+v, the ledger %+v, and the service %+v", all, h.ledger.tokens(), s)
		return
	}
	for _, path := range []string{s.TokenFile, s.BootstrapFile, beside(s)} {
		info, err := os.Lstat(path)
		check.NoError(t, err)
		if st := info.Sys().(*syscall.Stat_t); info.Mode() != 0o400 || st.Uid != bob {
			t.Errorf("%s is %s of uid %d", path, info.Mode(), st.Uid)
		}
	}
	if secret, err := os.ReadFile(s.TokenFile); err != nil || string(secret) != all[0].Secret {
		t.Errorf("the token file does not hold the token: %v", err)
	}
	if f := bootstrapOf(t, s); f.Token != all[0].Secret {
		t.Error("the bootstrap was not made with the token")
	}
	if s.Message != "" {
		t.Errorf("it is not as it should be: %s", s.Message)
	}
}

func TestServicesStartAndStop(t *testing.T) {
	for name, c := range map[string]struct {
		of    service.Service
		forth string
		back  string
	}{
		"sidecar": {
			sidecar("web"),
			"claim w, register web, derive web, read, bootstrap web",
			"revoke web, deregister web",
		},
		"gateway": {
			service.Service{
				Name: "web", Port: "http",
				Connect: &service.Connect{Gateway: &service.Gateway{Mesh: &service.Mesh{}}},
			},
			"claim w, register web, derive web, read, bootstrap web",
			"revoke web, deregister web",
		},
		"native": {native("web"), "claim w, register web, derive web, read", "revoke web, deregister web"},
		"plain":  {plainService("web"), "claim w, register web", "deregister web"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			s := withServices(spec("w"), c.of)
			w := h.start(t, s)
			if got := strings.Join(h.happened(), ", "); got != c.forth {
				t.Errorf("got %q, want %q", got, c.forth)
			}
			st := w.Services[0]
			meshed, proxied := c.of.Connect != nil, c.of.Proxied()
			if st.Name != "web" || st.Consul != "default" || st.ID != "pannier:here:default:w:web" || st.Message != "" ||
				(st.ProxyID != "") != proxied || (st.Accessor != "") != meshed || (st.TokenFile != "") != meshed ||
				(st.BootstrapFile != "") != proxied || (st.AdminSocket != "") != proxied || (st.ReadySocket != "") != proxied ||
				st.AdminPort != 0 || st.ReadyPort != 0 ||
				(w.SecretsDir != "") != meshed {
				t.Errorf("status: %+v, secrets in %q", st, w.SecretsDir)
			}
			if proxied {
				h.wellIdentified(t, st)
				want := bootstrap.Request{
					ProxyID: st.ProxyID, TokenFile: filepath.Join(w.SecretsDir, "web", "si_token"),
					Dir:   filepath.Join(w.SecretsDir, "web"),
					Admin: bootstrap.Unix(filepath.Join(w.SecretsDir, "web", "admin.sock")),
					Ready: bootstrap.Unix(filepath.Join(w.SecretsDir, "web", "ready.sock")),
				}
				if got := bootstrapOf(t, st).Request; got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
			}
			if h.consul.changed() == 0 {
				t.Error("nobody was told that the instances have changed")
			}
			h.forget()
			w = h.stop(t, "w")
			back := strings.Split(c.back, ", ")
			inOrder(t, h.happened(), append([]string{"end w"}, back...)...)
			if st := w.Services[0]; st.TokenFile != "" || st.BootstrapFile != "" || st.Accessor != "" || st.ProxyID != "" {
				t.Errorf("stopped: %+v", st)
			}
			h.clean(t)
		})
	}
}

// Services are started and stopped in parallel with each other and with the volumes.
func TestServicesAndVolumesInParallel(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	forth, back := meet(3), meet(3)
	h.on("attach:before", 1, forth)
	h.on("register:before", 0, forth)
	h.on("unpublish:before", 1, back)
	h.on("revoke:before", 0, back)
	h.start(t, withServices(spec("w", "a"), sidecar("web"), native("db")))
	if n := h.count("claim w"); n != 1 {
		t.Errorf("%d commands for claims and tokens", n)
	}
	h.stop(t, "w")
	h.clean(t)
}

// If a step of a service fails in any way, everything is undone, including the volumes.
func TestAStepOfAServiceGoesWrong(t *testing.T) {
	ways := map[string]struct {
		when string
		stop bool
	}{
		"fails":           {when: "before"},
		"is uncertain":    {when: "after"},
		"hangs":           {when: "before", stop: true},
		"hangs when done": {when: "after", stop: true},
	}
	undone := map[string][]string{
		"register":  {"forget web", "deregister web"}, // Consul was not asked for a token yet
		"derive":    {"revoke web", "deregister web"},
		"read":      {"revoke web", "deregister web"},
		"bootstrap": {"revoke web", "deregister web"},
	}
	for call, undoing := range undone {
		for way, c := range ways {
			for _, life := range []time.Duration{0, time.Hour} {
				t.Run(fmt.Sprintf("%s %s, life %s", call, way, life), func(t *testing.T) {
					h := newHost(t)
					h.consul.life = life
					h.volume(t, full, "a")
					label, held := call+":"+c.when, newGate()
					if c.stop {
						h.on(label, 1, held.hold)
						go func() {
							held.await(t)
							_, _ = h.Stop(context.Background(), ref("w"), "enough", nil)
						}()
					} else {
						h.on(label, 1, fail(codes.Internal))
					}
					s := withServices(spec("w", "a"), sidecar("web"))
					w, err := h.Start(t.Context(), s, Options{})
					if !errors.Is(err, ErrFailed) || w.State != Failed {
						t.Fatalf("%s, %v", w.State, err)
					}
					want := "the test wants it so"
					if c.stop {
						want = "the start was given up: enough"
					}
					if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "was undone") {
						t.Errorf("got %v, want %q", err, want)
					}
					if !c.stop && (!strings.Contains(err.Error(), `service "web" of workload "w"`) || h.count(call+" web") > 1) {
						t.Errorf("it was tried again, or is not named: %v", err)
					}
					inOrder(t, h.happened(), append([]string{"end w"}, undoing...)...)
					if call == "derive" && c.when == "after" && life > 0 {
						// The answer with the secret was lost: the token expires.
						check.NoError(t, h.consul.forget())
					}
					h.clean(t)
					h.start(t, s) // and again
					h.stop(t, "w")
					h.clean(t)
				})
			}
		}
	}
}

// Only errors that may pass are retried.
func TestCallsToConsulAreRetried(t *testing.T) {
	for _, call := range []string{"register", "derive", "read", "bootstrap"} {
		for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted} {
			for _, when := range []string{"before", "after"} {
				t.Run(fmt.Sprint(call, " ", code, " ", when), func(t *testing.T) {
					h := newHost(t)
					for n := 1; n <= 3; n++ {
						h.on(call+":"+when, n, fail(code))
					}
					w := h.start(t, withServices(spec("w"), sidecar("web")))
					h.wellIdentified(t, w.Services[0])
					h.stop(t, "w")
					h.clean(t)
				})
			}
		}
	}
	t.Run("read until it is known", func(t *testing.T) {
		h := newHost(t)
		for n := 1; n <= 3; n++ {
			h.on("read:before", n, fail(codes.NotFound))
		}
		h.wellIdentified(t, h.start(t, withServices(spec("w"), sidecar("web"))).Services[0])
		h.stop(t, "w")
		h.clean(t)
	})
}

// A new token cannot be read back for longer than a token may be unknown, since Consul is away. The start waits.
func TestConsulIsAwayAfterADerivation(t *testing.T) {
	h := newHost(t)
	h.services.Limits.ReadBack = 10 * time.Millisecond
	back := time.Now().Add(20 * h.services.Limits.ReadBack)
	h.on("read:before", 0, func(ctx context.Context) error {
		if time.Now().Before(back) {
			return fail(codes.Unavailable)(ctx)
		}
		return nil
	})
	h.wellIdentified(t, h.start(t, withServices(spec("w"), sidecar("web"))).Services[0])
	if n := h.count("derive web"); n != 1 {
		t.Errorf("%d tokens were derived", n)
	}
	h.stop(t, "w")
	h.clean(t)
}

// Calls that keep failing are given up in time, with the reason.
func TestCallsToConsulAreGivenUp(t *testing.T) {
	for call, c := range map[string]struct {
		code   codes.Code
		limit  func(h *host)
		within string
	}{
		"register": {
			codes.Unavailable, func(h *host) { h.services.Limits.Register = 300 * time.Millisecond },
			"given up after 300ms",
		},
		"derive": {codes.Unavailable, func(h *host) {
			h.services.IdentityTimeout = map[string]time.Duration{"default": 300 * time.Millisecond}
		}, "more than 300ms"},
		"read": {
			codes.NotFound, func(h *host) { h.services.Limits.ReadBack = 300 * time.Millisecond },
			"given up after 300ms",
		},
		"bootstrap": {
			codes.Unavailable, func(h *host) { h.services.Limits.Bootstrap = 300 * time.Millisecond },
			"given up after 300ms",
		},
	} {
		t.Run(call, func(t *testing.T) {
			h := newHost(t)
			c.limit(h)
			h.on(call+":before", 0, fail(c.code))
			_, err := h.Start(t.Context(), withServices(spec("w"), sidecar("web")), Options{})
			if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), c.within) &&
				!strings.Contains(err.Error(), "given up after 300ms") || !strings.Contains(err.Error(), "the test wants it so") {
				t.Errorf("got %v", err)
			}
			h.clean(t)
		})
	}
	t.Run("a pause that is longer", func(t *testing.T) {
		h := newHost(t)
		h.services.Limits.Register, h.services.Limits.Retry.Min, h.services.Limits.Retry.Max = 300*time.Millisecond,
			time.Hour, time.Hour
		h.on("register:before", 0, fail(codes.Unavailable))
		if _, err := h.Start(t.Context(), withServices(spec("w"), plainService("web")), Options{}); err == nil ||
			!strings.Contains(err.Error(), "given up after 300ms") {
			t.Errorf("got %v", err)
		}
		h.clean(t)
	})
	t.Run("a call that hangs", func(t *testing.T) {
		h := newHost(t)
		h.services.Limits.Identity = 300 * time.Millisecond
		h.on("derive:before", 1, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		_, err := h.Start(t.Context(), withServices(spec("w"), sidecar("web")), Options{})
		if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "300ms") {
			t.Errorf("got %v", err)
		}
		h.clean(t)
	})
}

// A failed volume cancels the derivation that runs in parallel.
func TestAVolumeFailsInMidDerivation(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	held := newGate()
	h.on("derive:before", 1, held.hold)
	h.on("publish:before", 1, func(ctx context.Context) error {
		select {
		case <-held.reached:
		case <-ctx.Done():
		}
		return fail(codes.Internal)(ctx)
	})
	if _, err := h.Start(t.Context(), withServices(spec("w", "a"), sidecar("web")), Options{}); !errors.Is(err,
		ErrFailed) || !strings.Contains(err.Error(), `publish volume "a"`) {
		t.Errorf("got %v", err)
	}
	h.clean(t)
}

// A refused claim leaves no record of a token, and nothing to ask Consul for.
func TestARefusedClaimLeavesNoToken(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.on("claim:before", 1, func(context.Context) error { return claimRefused })
	if _, err := h.Start(t.Context(), withServices(spec("w", "a"), sidecar("web")), Options{}); !errors.Is(err,
		claimRefused) {
		t.Fatal(err)
	}
	if got := h.happened(); len(got) > 0 {
		t.Errorf("calls were made: %v", got)
	}
	h.clean(t)
}

// While Consul is away, claims are released nevertheless; the workload waits for Consul.
func TestConsulIsAwayAtAStop(t *testing.T) {
	for name, away := range map[string]func(ctx context.Context) error{
		"fails": fail(codes.Unavailable),
		"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.services.Limits.Release = 300 * time.Millisecond
			h.volume(t, full, "a")
			h.start(t, withServices(spec("w", "a"), sidecar("web")))
			back := make(chan struct{})
			for _, call := range []string{"revoke", "deregister"} {
				h.on(call+":before", 0, func(ctx context.Context) error {
					select {
					case <-back:
						return nil
					default:
						return away(ctx)
					}
				})
			}
			go func() { _, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil) }()
			w := h.waiting(t, "w")
			if !strings.Contains(w.Waiting, `revoke the token of service "web"`) {
				t.Errorf("it waits for %q", w.Waiting)
			}
			if claims := h.ledger.claims(); len(claims) > 0 || len(w.Mounts) > 0 {
				t.Errorf("claims are kept: %+v, %+v", claims, w.Mounts)
			}
			h = h.next(t) // and the host is started again meanwhile
			h.services.Limits.Release = 300 * time.Millisecond
			h.on("revoke:before", 1, away)
			h.open(t)
			if w := h.ended(t, "w"); w.State != Stopped {
				t.Errorf("it is %s", w.State)
			}
			h.clean(t)
			close(back)
		})
	}
}

// A claim's release does not wait for a Consul that hangs, not even for one attempt.
func TestAClaimDoesNotWaitForConsul(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.start(t, withServices(spec("w", "a"), sidecar("web")))
	held, freed := newGate(), newGate()
	h.on("revoke:before", 1, held.hold)
	h.on("freed:after", 1, freed.hold)
	go func() { _, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil) }()
	held.await(t)
	freed.await(t)
	if claims := h.ledger.claims(); len(claims) > 0 {
		t.Errorf("claims: %+v", claims)
	}
	close(held.open)
	close(freed.open)
	h.ended(t, "w")
	h.clean(t)
}

// If the files cannot be written, the start fails and nothing is left.
func TestSecretsCannotBeWritten(t *testing.T) {
	h := newHost(t)
	dir := filepath.Join(h.dir, "secrets")
	check.NoError(t, os.Mkdir(dir, 0o700))
	check.NoError(t, syscall.Mount("small", dir, "tmpfs", 0, "size=16k"))
	h.on("bootstrap:after", 1, func(context.Context) error { // the token is there already
		raw := []byte(strings.Repeat("x", 2<<20))
		_ = os.WriteFile(filepath.Join(dir, "default", "w", "web", "filler"), raw, 0o600)
		return nil
	})
	if _, err := h.Start(t.Context(), withServices(spec("w"), sidecar("web")), Options{}); !errors.Is(err,
		secretsdir.ErrFull) || !errors.Is(err, ErrFailed) {
		t.Errorf("got %v", err)
	}
	h.clean(t)

	theirs := filepath.Join(dir, "theirs")
	check.NoError(t, os.Remove(filepath.Join(dir, ".pannier-secrets")))
	check.NoError(t, os.WriteFile(theirs, nil, 0o600))
	h.forget()
	if _, err := h.Start(t.Context(), withServices(spec("w"), sidecar("web")), Options{}); !errors.Is(err,
		secretsdir.ErrForeign) || errors.Is(err, ErrFailed) {
		t.Errorf("got %v", err)
	}
	if got := h.happened(); len(got) > 0 || h.Ports.Held() > 0 {
		t.Errorf("calls were made: %v, ports are held: %d", got, h.Ports.Held())
	}
}

// No secret is in what a workload shows of itself, nor in the journal.
func TestNoSecretIsShown(t *testing.T) {
	h := newHost(t)
	h.consul.life = time.Hour
	w := h.start(t, withServices(spec("w"), sidecar("web")))
	secret := h.consul.tokens()[0].Secret
	told, err := json.Marshal([]any{w, h.bus.Recent(100), h.Registered.Instances(), h.Registered.Beats()})
	check.NoError(t, err)
	if strings.Contains(string(told), secret) {
		t.Errorf("it is in %s", told)
	}
	h.shut(t)
	check.NoError(t, filepath.WalkDir(filepath.Join(h.dir, "journal"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if strings.Contains(string(raw), secret) {
			t.Errorf("it is in %s", path)
		}
		return err
	}))
	h = h.restart(t)
	h.stop(t, "w")
	h.clean(t)
}

func TestPortsOfAWorkload(t *testing.T) {
	h := newHost(t)
	s := withServices(spec("w"), sidecar("web"), sidecar("api"))
	for n := range s.Services {
		s.Services[n].Connect.Admin = service.AdminTCP
	}
	s.Ports = append(s.Ports, specs.Port{Label: "admin"})
	w := h.start(t, s)
	seen := map[int]bool{}
	all := []int{w.Ports["http"], w.Ports["admin"]}
	for _, sv := range w.Services {
		all = append(all, sv.AdminPort, sv.ReadyPort)
		if sv.Port != w.Ports["http"] {
			t.Errorf("the service has port %d, and the label is %d", sv.Port, w.Ports["http"])
		}
	}
	for _, p := range all {
		if p < ports.DefaultMin || p > ports.DefaultMax || seen[p] {
			t.Errorf("ports: %v", all)
		}
		seen[p] = true
	}
	other := spec("other")
	other.Ports = []specs.Port{{Label: "mine", Static: w.Ports["http"]}}
	conflict := func() {
		t.Helper()
		_, err := h.Start(t.Context(), other, Options{})
		if !errors.Is(err, ports.ErrTaken) || !strings.Contains(err.Error(), `port "mine": the port is taken: `) ||
			!strings.Contains(err.Error(), `is held by workload "w"`) {
			t.Errorf("got %v", err)
		}
		if _, err := h.Get(ref("other")); !errors.Is(err, ErrNotFound) {
			t.Errorf("there is a record of it: %v", err)
		}
	}
	conflict()
	h = h.restart(t)
	if got := h.running(t, "w").Ports; !slices.Equal([]int{got["http"], got["admin"]}, all[:2]) {
		t.Errorf("after a restart it has %v", got)
	}
	conflict()
	h.stop(t, "w")
	if got := h.start(t, other).Ports; got["mine"] != all[0] {
		t.Errorf("got %v", got)
	}
	h.stop(t, "other")
	h.clean(t)
}

// The ports of upstreams are the node's: no other workload and no program has them, also after a restart of the host.
func TestPortsOfUpstreams(t *testing.T) {
	h := newHost(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	of := func(id, address string) Spec {
		web := sidecar("web")
		web.Connect.SidecarService.Proxy = &service.Proxy{Upstreams: []service.Upstream{
			{DestinationName: "db", LocalBindAddress: address, LocalBindPort: int32(port)},
		}}
		return withServices(spec(id), web)
	}
	refused := func(s Spec, why string) {
		t.Helper()
		_, err := h.Start(t.Context(), s, Options{})
		if !errors.Is(err, ports.ErrTaken) || !strings.Contains(err.Error(), why) {
			t.Errorf("got %v, want %q", err, why)
		}
	}
	refused(of("w", ""), fmt.Sprintf(`port "web upstream db": the port is taken: %d is used by a program`, port))
	check.NoError(t, l.Close())
	h.start(t, of("w", ""))
	for range 2 {
		refused(of("x", "127.0.0.1"), `held by workload "w"`)
		own := of("y", "")
		own.Ports = append(own.Ports, specs.Port{Label: "db", Static: port})
		refused(own, `held by workload "w"`)
		h.start(t, of("z", "127.0.0.2"))
		h.stop(t, "z")
		h = h.restart(t)
	}
	h.stop(t, "w")
	own := of("y", "") // a port of its own that it keeps for its upstream
	own.Ports = append(own.Ports, specs.Port{Label: "db", Static: port})
	h.start(t, own)
	h.stop(t, "y")
	h.clean(t)
}

// Every port on which a spec lets a proxy listen is the workload's, since Envoys would share it.
func TestPortsOfProxies(t *testing.T) {
	sidecarOf := func(change func(s *service.SidecarService)) *service.Connect {
		s := &service.SidecarService{Proxy: &service.Proxy{}}
		change(s)
		return &service.Connect{SidecarService: s}
	}
	for label, connect := range map[string]func(port int) *service.Connect{
		"sidecar": func(port int) *service.Connect {
			return sidecarOf(func(s *service.SidecarService) { s.Port = strconv.Itoa(port) })
		},
		"exposed path /health": func(port int) *service.Connect {
			return sidecarOf(func(s *service.SidecarService) {
				s.Proxy.Expose = &service.Expose{Paths: []service.ExposePath{
					{Path: "/health", Protocol: "http", LocalPathPort: 1, ListenerPort: strconv.Itoa(port)},
				}}
			})
		},
		"envoy_prometheus_bind_addr": func(port int) *service.Connect {
			return sidecarOf(func(s *service.SidecarService) {
				s.Proxy.Config = map[string]any{"envoy_prometheus_bind_addr": fmt.Sprint("0.0.0.0:", port)}
			})
		},
		"ingress listener": func(port int) *service.Connect {
			return &service.Connect{Gateway: &service.Gateway{Ingress: &service.Ingress{Listeners: []service.IngressListener{
				{Port: int32(port), Protocol: "tcp", Services: []service.IngressService{{Name: "db"}}},
			}}}}
		},
		"envoy_stats_bind_addr": func(port int) *service.Connect {
			return &service.Connect{Gateway: &service.Gateway{Mesh: &service.Mesh{}, Proxy: &service.GatewayProxy{
				Config: map[string]any{"envoy_stats_bind_addr": fmt.Sprint("127.0.0.1:", port)},
			}}}
		},
		"gateway": func(int) *service.Connect { // its service's port
			return &service.Connect{Gateway: &service.Gateway{Mesh: &service.Mesh{}}}
		},
		"bind address lan": func(port int) *service.Connect {
			return &service.Connect{Gateway: &service.Gateway{Mesh: &service.Mesh{}, Proxy: &service.GatewayProxy{
				EnvoyGatewayBindAddresses: map[string]service.BindAddress{"lan": {Address: "127.0.0.1", Port: int32(port)}},
			}}}
		},
	} {
		t.Run(label, func(t *testing.T) {
			h := newHost(t)
			port := freePorts(t, 1)[0]
			of := func(id string) Spec {
				web := sidecar("web")
				web.Connect = connect(port)
				if label == "gateway" {
					web.Port = strconv.Itoa(port)
				}
				return withServices(spec(id), web)
			}
			h.start(t, of("w"))
			_, err := h.Start(t.Context(), of("x"), Options{})
			want := fmt.Sprintf(`port "web %s": the port is taken: %d is held by workload "w"`, label, port)
			if !errors.Is(err, ports.ErrTaken) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
			h.stop(t, "w")
			h.start(t, of("x"))
			h.stop(t, "x")
			h.clean(t)
		})
	}
}

// Where the proxy's admin API listens is the spec's choice, and stays over a restart of the host.
func TestAdminOfAProxy(t *testing.T) {
	for admin, want := range map[string]func(st servicesteps.Status) bootstrap.Request{
		service.AdminNone: func(servicesteps.Status) (r bootstrap.Request) { return r },
		service.AdminTCP: func(st servicesteps.Status) bootstrap.Request {
			return bootstrap.Request{
				Admin: bootstrap.Bind{Address: "127.0.0.1", Port: st.AdminPort},
				Ready: bootstrap.Bind{Address: "127.0.0.1", Port: st.ReadyPort},
			}
		},
	} {
		t.Run(admin, func(t *testing.T) {
			h := newHost(t)
			web := sidecar("web")
			web.Connect.Admin = admin
			st := h.start(t, withServices(spec("w"), web)).Services[0]
			tcp := admin == service.AdminTCP
			if (st.AdminPort != 0) != tcp || (st.ReadyPort != 0) != tcp || st.AdminSocket+st.ReadySocket != "" {
				t.Errorf("status: %+v", st)
			}
			if got, want := bootstrapOf(t, st).Request, want(st); got.Admin != want.Admin || got.Ready != want.Ready {
				t.Errorf("got %+v, want %+v", got, want)
			}
			h = h.restart(t)
			if again := h.running(t, "w").Services[0]; again.AdminPort != st.AdminPort || again.ReadyPort != st.ReadyPort {
				t.Errorf("after a restart: %+v, before %+v", again, st)
			}
			h.stop(t, "w")
			h.clean(t)
		})
	}
}

// A step that is tried again explains why meanwhile, and a second try that fails is an event.
func TestAStepThatRetriesSaysWhy(t *testing.T) {
	h := newHost(t)
	held := newGate()
	h.on("register:before", 1, fail(codes.Unavailable))
	h.on("register:before", 2, fail(codes.Unavailable))
	h.on("register:before", 3, held.hold)
	done := make(chan error, 1)
	go func() {
		_, err := h.Start(t.Context(), withServices(spec("w"), plainService("web")), Options{})
		done <- err
	}()
	held.await(t)
	w := check.Must(h.Get(ref("w")))(t)
	if n := len(w.Steps) - 1; w.Steps[n].Name != "register" || !strings.Contains(w.Steps[n].Note, "the test wants it so") {
		t.Errorf("the steps are %+v", w.Steps)
	}
	waits := 0
	for _, e := range h.bus.Recent(1000) {
		if e.Type == "step-waits" && e.Details["step"] == "register web" {
			waits++
		}
	}
	if waits != 1 {
		t.Errorf("there were %d events", waits)
	}
	close(held.open)
	check.NoError(t, <-done)
	if w := check.Must(h.Get(ref("w")))(t); w.Steps[len(w.Steps)-1].Note != "" {
		t.Errorf("it still says %q", w.Steps[len(w.Steps)-1].Note)
	}
	h.stop(t, "w")
	h.clean(t)
}
