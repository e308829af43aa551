package workload

import (
	"errors"
	"net"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
)

// Services are registered in Consul with numbers and values in place of labels and variables.
func TestServicesAreResolved(t *testing.T) {
	h := newHost(t)
	s := withServices(spec("w"), service.Service{
		Name: "web", Port: "http", Tags: []string{"on-${node.name}", "$${literal}", "${workload.namespace}/${workload.id}"},
		CanaryTags: []string{"canary-${port.http}"}, Meta: map[string]string{"dc": "${node.datacenter}"},
		Checks: []service.Check{
			{Type: "http", Path: "/${workload.id}", Port: "admin", Interval: "10s", Timeout: "1s"},
			{Type: "tcp", Port: "8080", Interval: "10s", Timeout: "1s"},
		},
		Connect: &service.Connect{SidecarService: &service.SidecarService{Port: "public", Proxy: &service.Proxy{
			Expose: &service.Expose{Paths: []service.ExposePath{{
				Path: "/metrics", Protocol: "http", LocalPathPortLabel: "http",
				ListenerPort: "admin",
			}}},
			LocalServicePortLabel: "public",

			Config:    map[string]any{"envoy_key": "${node.name}"},
			Upstreams: []service.Upstream{{DestinationName: "db", LocalBindPortLabel: "admin"}},
		}}},
	})
	s.Ports = []specs.Port{{Label: "http"}, {Label: "admin"}, {Label: "public"}}
	w := h.start(t, s)
	port := func(label string) string { return strconv.Itoa(w.Ports[label]) }
	want := service.Service{
		Name: "web", Port: port("http"), Consul: "default", Tags: []string{
			"on-here", "${literal}",
			"default/w",
		}, Meta: map[string]string{"dc": "dc7"},
		Checks: []service.Check{
			{Type: "http", Path: "/w", Port: port("admin"), Interval: "10s", Timeout: "1s"},
			{Type: "tcp", Port: "8080", Interval: "10s", Timeout: "1s"},
		},
		Connect: &service.Connect{SidecarService: &service.SidecarService{Port: port("public"), Proxy: &service.Proxy{
			Expose: &service.Expose{Paths: []service.ExposePath{{
				Path: "/metrics", Protocol: "http", LocalPathPort: int32(w.Ports["http"]),
				ListenerPort: port("admin"),
			}}},
			LocalServicePort: int32(w.Ports["public"]),

			Config:    map[string]any{"envoy_key": "here"},
			Upstreams: []service.Upstream{{DestinationName: "db", LocalBindPort: int32(w.Ports["admin"])}},
		}}},
	}
	told := h.consul.services()["pannier:here:default:w:web"]
	if !reflect.DeepEqual(told.Service, want) || told.Namespace != "default" || told.Workload != "w" {
		t.Errorf("got  %+v\nwant %+v", told, want)
	}
	if got := h.Registered.Instances(); len(got) != 1 || len(got["default"]) != 1 || !reflect.DeepEqual(got["default"][0], told) {
		t.Errorf("instances: %+v", got)
	}
	if got := w.Services[0].Upstreams; !reflect.DeepEqual(got, map[string]string{"db": "127.0.0.1:" + port("admin")}) {
		t.Errorf("the program finds its upstreams at %v", got)
	}
	s.Canary = true
	h.start(t, s)
	if got := h.consul.services()["pannier:here:default:w:web"].Service; !reflect.DeepEqual(got.Tags,
		[]string{"canary-" + port("http")}) || got.Meta["dc"] != "dc7" {
		t.Errorf("as a canary: %+v", got)
	}
	h.stop(t, "w")
	h.clean(t)
}

// Faults that can be known in advance are found before anything is written or called.
func TestUnresolvableServices(t *testing.T) {
	for want, spoil := range map[string]func(s *Spec){
		`service "web": tags[0]: unknown variable ${node.nam}; known are ${node.datacenter}, ${node.name}, ${port.http}, ${secrets_dir}, ${workload.id}, ${workload.namespace}`: func(s *Spec) { s.Services[0].Tags = []string{"${node.nam}"} },
		`service "web": the agent has no consul block "west"`:   func(s *Spec) { s.Services[0].Consul = "west" },
		`user "nobody-has-this-name", the owner of its secrets`: func(s *Spec) { s.User = "nobody-has-this-name" },
		`service "web": meta: key: has 600 bytes, 512 are allowed`: func(s *Spec) {
			s.ID = strings.Repeat("x", 60)
			s.Services[0].Meta = map[string]string{"key": strings.Repeat("${workload.id}", 10)}
		},
	} {
		h := newHost(t)
		s := withServices(spec("w"), sidecar("web"))
		spoil(&s)
		_, err := h.Start(t.Context(), s, Options{})
		if errors.Is(err, specs.ErrInvalid) == errors.Is(err, errNoBlock) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if got := h.happened(); len(got) > 0 {
			t.Errorf("calls were made: %v", got)
		}
		if _, err := h.Get(ref("w")); !errors.Is(err, ErrNotFound) {
			t.Errorf("there is a workload: %v", err)
		}
		h.clean(t)
	}
}

func TestTheUserOfSecrets(t *testing.T) {
	for user, want := range map[string]int{"": 0, "4711": 4711, "root": 0, "daemon": 1} {
		s := Spec{User: user}
		if got, err := s.UID(); err != nil || got != want {
			t.Errorf("%q: got %d, %v", user, got, err)
		}
		s = Spec{Exec: &specs.Exec{User: user}}
		if got, err := s.UID(); err != nil || got != want {
			t.Errorf("exec's %q: got %d, %v", user, got, err)
		}
	}
	s := Spec{User: "7", Exec: &specs.Exec{User: "8"}}
	if got, _ := s.UID(); got != 7 {
		t.Errorf("the workload's user does not go before exec's: %d", got)
	}
}

// Consul's agent makes checks from the host: about the host's own addresses, and what its operator allows.
func TestChecksReachThisHostAlone(t *testing.T) {
	h := newHost(t)
	steps := &servicesteps.Steps{SecretsDir: h.SecretsDir, CheckAddresses: map[string][]string{
		"default": {"10.9.0.0/16", "db.example.com", "fd00::7"},
	}}
	resolve := func(svc service.Service) error {
		svc.Name = "web"
		_, err := steps.Resolve(ref("w"), []service.Service{svc}, false, nil)
		return err
	}
	http := func(address string) service.Service {
		return service.Service{Checks: []service.Check{
			{Type: "http", Address: address, Path: "/latest/meta-data", Port: "80", Interval: "10s", Timeout: "1s"},
		}}
	}
	for _, own := range []string{"", "127.0.0.9", "::1", "localhost", "10.9.8.7", "db.example.com", "fd00::7"} {
		check.NoError(t, resolve(http(own)))
	}
	host := check.Must(net.InterfaceAddrs())(t)
	check.NoError(t, resolve(http(host[len(host)-1].(*net.IPNet).IP.String())))

	tcp := service.Service{Address: "192.0.2.1", Checks: []service.Check{
		{Type: "tcp", Port: "22", Interval: "10s", Timeout: "1s"},
	}}
	sidecar := func(address, local string) service.Service {
		return service.Service{Port: "80", Address: address, Connect: &service.Connect{
			SidecarService: &service.SidecarService{Proxy: &service.Proxy{LocalServiceAddress: local}},
		}}
	}
	process := service.Service{Address: "192.0.2.1", Checks: []service.Check{{Type: "process", Interval: "10s"}}}
	check.NoError(t, resolve(process))
	check.NoError(t, resolve(service.Service{Address: "192.0.2.1"})) // nobody connects to it
	east := http("10.9.8.7")
	east.Consul = "east"
	for what, svc := range map[string]service.Service{
		"the cloud's metadata": http("169.254.169.254"), "mapped": http("::ffff:169.254.169.254"),
		"another host": http("10.10.0.1"), "a name": http("metadata.google.internal"), "octal": http("0251.0376.0251.0376"),
		"the service's address": tcp, "a sidecar's": sidecar("192.0.2.1", ""), "its program's": sidecar("", "192.0.2.1"),
		"another Consul's": east,
	} {
		if err := resolve(svc); err == nil || !strings.Contains(err.Error(), "check_addresses in the block consul") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
