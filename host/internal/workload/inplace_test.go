package workload

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/host/internal/consul/ports"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
)

// proxied is a workload with a sidecar that has upstreams by name and port, and a metrics URL.
func proxied(upstreams map[string]int, statsd string) Spec {
	web := sidecar("web")
	proxy := &service.Proxy{}
	for _, name := range slices.Sorted(maps.Keys(upstreams)) {
		proxy.Upstreams = append(proxy.Upstreams,
			service.Upstream{DestinationName: name, LocalBindPort: int32(upstreams[name])})
	}
	if statsd != "" {
		proxy.Config = map[string]any{"envoy_statsd_url": statsd}
	}
	web.Connect.SidecarService = &service.SidecarService{Proxy: proxy}
	return withServices(spec("w"), web)
}

// freePorts are ports that nobody has at the moment.
func freePorts(t *testing.T, n int) (all []int) {
	t.Helper()
	var found []net.Listener
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check.NoError(t, err)
		found = append(found, l)
		all = append(all, l.Addr().(*net.TCPAddr).Port)
	}
	for _, l := range found {
		check.NoError(t, l.Close())
	}
	return all
}

// Upstreams and the proxy's configuration change while the workload runs. Only a bootstrap that is different is
// replaced, since that restarts the proxy.
func TestAProxyIsChangedInPlace(t *testing.T) {
	h := newHost(t)
	free := freePorts(t, 3)
	st := h.start(t, proxied(map[string]int{"db": free[0], "cache": free[1]}, "")).Services[0]
	first, err := os.Stat(st.BootstrapFile)
	check.NoError(t, err)
	replaced := func() bool {
		now, err := os.Stat(st.BootstrapFile)
		check.NoError(t, err)
		return !os.SameFile(first, now)
	}
	h.forget()
	changed := proxied(map[string]int{"db": free[2], "cache": free[1]}, "")
	w := h.start(t, changed)
	if got := strings.Join(h.happened(), ", "); got != "register web, read, bootstrap web" {
		t.Errorf("calls were made: %s", got)
	}
	told := h.consul.services()[st.ID].Service
	if got := told.Upstreams(); len(got) != 2 || int(got[1].LocalBindPort) != free[2] {
		t.Errorf("Consul has %+v", got)
	}
	if got := w.Services[0].Upstreams["db"]; !strings.HasSuffix(got, ":"+strconv.Itoa(free[2])) || replaced() {
		t.Errorf("the upstream is at %s, the bootstrap replaced: %t", got, replaced())
	}
	for _, restarted := range []bool{false, true} {
		if restarted {
			h = h.restart(t)
			h.running(t, "w")
		}
		other := func(port int) Spec {
			s := proxied(map[string]int{"db": port}, "")
			s.ID = "other"
			return s
		}
		if _, err := h.Start(t.Context(), other(free[2]), Options{}); !errors.Is(err, ports.ErrTaken) {
			t.Errorf("another workload gets the new upstream's port: %v", err)
		}
		h.start(t, other(free[0]))
		h.stop(t, "other")
	}
	if n := h.countEvents("bootstrap-replaced"); n != 0 {
		t.Errorf("%d bootstraps were replaced", n)
	}

	h.start(t, proxied(map[string]int{"cache": free[1]}, "udp://127.0.0.1:8125"))
	if f := bootstrapOf(t, st); f.Statsd != "udp://127.0.0.1:8125" || !replaced() {
		t.Errorf("the bootstrap has %v, replaced: %t", f.Statsd, replaced())
	}
	if n := h.countEvents("bootstrap-replaced"); n != 1 {
		t.Errorf("%d bootstraps were replaced", n)
	}
	h.wellIdentified(t, h.running(t, "w").Services[0])
	h.stop(t, "w")
	h.clean(t)
}

// A change that cannot be made changes nothing: the ports are those of before.
func TestAProxyThatCannotBeChanged(t *testing.T) {
	h := newHost(t)
	free := freePorts(t, 2)
	h.start(t, proxied(map[string]int{"db": free[0]}, ""))
	taken := proxied(map[string]int{"db": free[1]}, "")
	taken.ID = "x"
	h.start(t, taken)
	if _, err := h.Start(t.Context(), proxied(map[string]int{"db": free[1]}, ""), Options{}); !errors.Is(err,
		ports.ErrTaken) {
		t.Errorf("got %v", err)
	}
	same := func(s *Spec) *service.Connect { return s.Services[0].Connect }
	for what, change := range map[string]func(s *Spec){
		"admin":  func(s *Spec) { same(s).Admin = service.AdminNone },
		"native": func(s *Spec) { s.Services[0].Connect = &service.Connect{Native: true}; s.Services[0].Port = "80" },
	} {
		s := proxied(map[string]int{"db": free[0]}, "")
		change(&s)
		if _, err := h.Start(t.Context(), s, Options{}); !errors.Is(err, ErrConflict) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if n := h.count("register web"); n != 2 {
		t.Errorf("registered %d times", n)
	}
	h.start(t, proxied(map[string]int{"db": free[0]}, ""))
	h.stop(t, "x")
	h.stop(t, "w")
	h.clean(t)
}

// An update changes what runs, whoever runs it, and starts nothing.
func TestUpdate(t *testing.T) {
	h := newHost(t)
	s := proxied(nil, "udp://127.0.0.1:1")
	update := Options{Update: true}
	if _, err := h.Start(t.Context(), s, update); !errors.Is(err, ErrNotFound) {
		t.Errorf("of nothing: %v", err)
	}
	s.Exec = &specs.Exec{Command: "from-the-command-line"}
	if _, err := h.Start(t.Context(), s, Options{Owner: refOf(os.Getpid())}); err != nil {
		t.Fatal(err)
	}
	changed := proxied(nil, "udp://127.0.0.1:2")
	if _, err := h.Start(t.Context(), changed, Options{}); !errors.Is(err, ErrConflict) {
		t.Errorf("a start: %v", err)
	}
	w, err := h.Start(t.Context(), changed, update)
	check.NoError(t, err)
	if w.OwnerPID != os.Getpid() || w.Spec.Exec == nil || bootstrapOf(t, w.Services[0]).Statsd != "udp://127.0.0.1:2" {
		t.Errorf("it is %+v", w)
	}
	changed.User = "0"
	if _, err := h.Start(t.Context(), changed, update); !errors.Is(err, ErrConflict) {
		t.Errorf("of another user: %v", err)
	}
	h.stop(t, "w")
	if _, err := h.Start(t.Context(), changed, update); !errors.Is(err, ErrNotFound) {
		t.Errorf("of what has ended: %v", err)
	}
	h.clean(t)
}

// What Consul adds to the configuration of a proxy is in its bootstrap, also when the host was away meanwhile.
func TestAProxyIsReconfiguredInConsul(t *testing.T) {
	h := newHost(t)
	st := h.start(t, proxied(nil, "")).Services[0]
	proxyDefaults := func(statsd, digest string) {
		check.NoError(t, h.consul.change(func(s *consulState) error { s.Statsd = statsd; return nil }))
		h.Registered.Reconfigured("default", st.ID, digest)
	}
	asked := func() string { return h.Registered.Instances()["default"][0].ProxyDigest }
	if asked() == "" {
		t.Error("no digest is asked for")
	}
	changed := func(statsd string) {
		t.Helper()
		h.eventually(t, "w", "changed", func(w Workload) bool { return bootstrapOf(t, st).Statsd == statsd })
	}
	proxyDefaults("udp://127.0.0.1:1", "first") // it is not known what the bootstrap was made with
	changed("udp://127.0.0.1:1")
	if got := asked(); got != "first" {
		t.Errorf("the digest is %q", got)
	}
	proxyDefaults("udp://127.0.0.1:2", "second")
	changed("udp://127.0.0.1:2")
	h.Registered.Reconfigured("default", st.ID, "second")
	h.Registered.Reconfigured("east", st.ID, "third")
	h.Registered.Reconfigured("default", "other", "third")

	held := newGate()
	h.on("bootstrap:before", 1, held.hold)
	proxyDefaults("udp://127.0.0.1:3", "third")
	held.await(t)
	h = h.restart(t)
	changed("udp://127.0.0.1:3")
	if got := asked(); got != "third" {
		t.Errorf("the digest is %q", got)
	}
	h.stop(t, "w")
	h.Registered.Reconfigured("default", st.ID, "fourth")
	h.clean(t)
}

// A change of a file that the bootstrap names replaces that file alone: the proxy reads it again, and is not started
// again. Units, which have a copy of the bootstrap, get one without such files.
func TestOnlyTheFileThatChangesIsReplaced(t *testing.T) {
	h := newHost(t)
	st := h.start(t, proxied(nil, "")).Services[0]
	bootstrap, aside := fileOf(t, st.BootstrapFile), fileOf(t, beside(st))
	change := func(ca, digest string) {
		check.NoError(t, h.consul.change(func(s *consulState) error { s.CA = ca; return nil }))
		h.Registered.Reconfigured("default", st.ID, digest)
	}
	change("second", "first")
	h.eventually(t, "w", "another CA", func(Workload) bool {
		text, err := os.ReadFile(beside(st))
		return err == nil && string(text) == "CA second"
	})
	if os.SameFile(aside, fileOf(t, beside(st))) {
		t.Error("the file is written in place: the proxy could read half of it")
	}
	if !os.SameFile(bootstrap, fileOf(t, st.BootstrapFile)) || h.countEvents("bootstrap-replaced") > 0 {
		t.Error("the bootstrap is replaced too")
	}
	h.stop(t, "w")
	if _, err := os.Stat(beside(st)); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
	s := proxied(nil, "")
	s.Units = []string{"web.service"}
	st = h.start(t, s).Services[0]
	if req := bootstrapOf(t, st).Request; req.Dir != "" {
		t.Errorf("units, which cannot read it, get files in %s", req.Dir)
	}
	h.stop(t, "w")
	h.clean(t)
}

func fileOf(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	check.NoError(t, err)
	return info
}

// A token that Consul has lost is replaced before the bootstrap is made again: with the old one it cannot be.
func TestABootstrapIsMadeAgainWithAValidToken(t *testing.T) {
	h := newHost(t)
	h.services.Limits.ReadBack = 50 * time.Millisecond
	before := h.start(t, proxied(nil, "")).Services[0]
	check.NoError(t, h.consul.forget())
	h.forget()
	h.Registered.Reconfigured("default", before.ID, "first")
	h.eventuallyDid(t, "bootstrap web", 1)
	if did := h.happened(); slices.Index(did, "bootstrap web") < slices.Index(did, "derive web") ||
		!slices.Contains(did, "derive web") {
		t.Errorf("the calls were %q", did)
	}
	if h.eventuallyWell(t, "w").Accessor == before.Accessor {
		t.Error("it has the same token")
	}
	h.stop(t, "w")
	h.clean(t)
}

// A host that ends in the middle of a change completes it, as does one whose Consul is away at first.
func TestTheHostEndsInTheMiddleOfAChange(t *testing.T) {
	s := proxied(nil, "udp://127.0.0.1:2")
	for _, label := range []string{"register:before", "register:after", "bootstrap:before", "bootstrap:after"} {
		for _, how := range []string{"closed", "refused"} {
			t.Run(how+" at "+label, func(t *testing.T) {
				h := newHost(t)
				h.start(t, proxied(nil, "udp://127.0.0.1:1"))
				if how == "closed" {
					held := newGate()
					h.on(label, 1, held.hold)
					go func() { _, _ = h.Start(context.Background(), s, Options{}) }()
					held.await(t)
					h = h.restart(t)
				} else {
					h.on(label, 1, fail(codes.PermissionDenied))
					_, _ = h.Start(t.Context(), s, Options{}) // it may be repeated before the answer
					if n := h.countEvents("registration-failed"); n != 1 {
						t.Errorf("%d events tell of the refusal", n)
					}
				}
				w := h.eventually(t, "w", "changed", func(w Workload) bool {
					return w.State == Running && w.Services[0].Message == "" && bootstrapOf(t, w.Services[0]).Statsd == "udp://127.0.0.1:2"
				})
				h.wellIdentified(t, w.Services[0])
				h.stop(t, "w")
				h.clean(t)
			})
		}
	}
}

// A look at a service's files while Consul has its registration of before leaves the bootstrap to be made again: what
// it makes meanwhile is made from that registration.
func TestABootstrapIsMadeAgainAfterTheRegistration(t *testing.T) {
	for name, look := range map[string]func(h *host, ctx context.Context, s *servicesteps.Service) error{
		"outdated": func(h *host, ctx context.Context, s *servicesteps.Service) error { return h.services.Renew(ctx, s) },
		"lost":     func(h *host, ctx context.Context, s *servicesteps.Service) error { return h.services.Bootstrap(ctx, s) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.start(t, proxied(nil, "udp://127.0.0.1:1"))
			held := newGate()
			h.on("register:before", 1, held.hold)
			go func() { _, _ = h.Start(context.Background(), proxied(nil, "udp://127.0.0.1:2"), Options{}) }()
			held.await(t)
			i, err := h.known.find(ref("w"))
			check.NoError(t, err)
			check.NoError(t, look(h, t.Context(), i.services[0]))
			close(held.open)
			h.eventually(t, "w", "changed", func(w Workload) bool {
				return bootstrapOf(t, w.Services[0]).Statsd == "udp://127.0.0.1:2"
			})
			h.stop(t, "w")
			h.clean(t)
		})
	}
}
