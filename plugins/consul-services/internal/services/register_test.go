package services

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

// everything changes a service to one that uses all fields and has a sidecar.
func everything(s *service.Service) {
	s.Address = "127.0.0.1"
	s.TaggedAddresses = map[string]string{"lan": "10.0.0.1", "wan": "192.0.2.4:99"}
	s.Weights = &service.Weights{Passing: 5, Warning: 2}
	s.Checks = []service.Check{
		{
			Type: service.CheckHTTP, Path: "/health?x=1", Interval: "10s", Timeout: "2s", Method: "PUT", Body: "b",
			Header: map[string]service.HeaderValues{"Authorization": {Values: []string{"hunter2"}}},
		},
		{Type: service.CheckTCP, Name: "listens", Port: "99", Address: "127.0.0.2", Interval: "1m", Notes: "ask the team of web"},
		{Type: service.CheckGRPC, Interval: "10s", GRPCService: "svc", InitialStatus: "passing"},
		{Type: service.CheckProcess, Interval: "30s"},
	}
	s.Connect = &service.Connect{SidecarService: &service.SidecarService{Proxy: &service.Proxy{
		Config: map[string]any{
			"protocol": "http", "envoy_x": 3, "nested": map[string]any{"a": []any{1, "b"}}, "no": false,
		},
		Upstreams: []service.Upstream{
			{
				DestinationName: "db", LocalBindPort: 5432, Config: map[string]any{"connect_timeout_ms": 100},
				MeshGateway: &service.MeshGateway{Mode: "local"},
			},
			{DestinationName: "sock", LocalBindSocketPath: "/run/x.sock", LocalBindSocketMode: "0700"},
			{
				DestinationName: "q", DestinationType: "prepared_query", LocalBindPort: 99, LocalBindAddress: "127.0.0.9",
				Datacenter: "dc1",
			},
		},
		Expose: &service.Expose{Paths: []service.ExposePath{{
			Path: "/metrics", LocalPathPort: 8080,
			ListenerPort: "21000", Protocol: "http2",
		}}},
		MeshGateway: &service.MeshGateway{Mode: "remote"},
	}}}
}

func sidecar(change ...func(*service.SidecarService)) func(*service.Service) {
	return func(s *service.Service) {
		s.Connect = &service.Connect{SidecarService: &service.SidecarService{}}
		for _, f := range change {
			f(s.Connect.SidecarService)
		}
	}
}

var marks = map[string]string{
	"external-source": "pannier", "pannier-cluster": "c1", "pannier-node": "n1", "pannier-namespace": "default",
	"pannier-workload": "w",
}

func marksAnd(key, value string) map[string]string {
	out := map[string]string{key: value}
	for k, v := range marks {
		out[k] = v
	}
	return out
}

// TestRegister registers each kind of service with a token of the documented policy, and checks that a pass of
// Sync finds nothing to do.
func TestRegister(t *testing.T) {
	t.Parallel()
	r := start(t, gatewayPolicy, consul.Options{TLS: true})
	t.Run("all fields", func(t *testing.T) { registersAllFields(t, r) })
	t.Run("a plain service", func(t *testing.T) {
		plain := instance("plain", func(s *service.Service) { s.Port, s.Tags, s.Meta = "", nil, nil })
		r.register(t, plain)
		r.settled(t, plain)
		r.quiet(t, plain)
		got := r.inCatalog(t, plain.ID)
		if got.Port != 0 || !reflect.DeepEqual(r.meta(t, got), marks) || len(r.checks(t, plain.ID)) != 0 ||
			r.inCatalog(t, plain.ID+sidecarSuffix) != nil {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("connect native", func(t *testing.T) {
		native := instance("native", func(s *service.Service) { s.Connect = &service.Connect{Native: true} })
		r.register(t, native)
		r.settled(t, native)
		r.quiet(t, native)
		if got := r.inCatalog(t, native.ID); got.Connect == nil || !got.Connect.Native {
			t.Errorf("got %+v", got.Connect)
		}
	})
	t.Run("a sidecar of its own mind", func(t *testing.T) {
		own := instance("own", sidecar(func(s *service.SidecarService) {
			s.Port, s.Tags, s.Meta, s.DisableDefaultTCPCheck = "21900", []string{"side"}, map[string]string{"s": "c"}, true
			s.Proxy = &service.Proxy{
				LocalServiceAddress: "127.0.0.7", LocalServicePort: 77,
				Expose: &service.Expose{Checks: true},
			}
		}))
		r.register(t, own)
		r.settled(t, own)
		r.quiet(t, own)
		got := r.inCatalog(t, own.ID+sidecarSuffix)
		if got.Port != 21900 || !slices.Equal(got.Tags, []string{"side"}) ||
			!reflect.DeepEqual(r.meta(t, got), marksAnd("s", "c")) ||
			got.Proxy.LocalServiceAddress != "127.0.0.7" || got.Proxy.LocalServicePort != 77 || !got.Proxy.Expose.Checks {
			t.Errorf("got %+v of %+v", got, got.Proxy)
		}
		if checks := r.checks(t, got.ID); len(checks) != 1 || checks["service:"+got.ID+":alias"] == nil {
			t.Errorf("checks: %v, want the alias alone", checks)
		}
	})
	t.Run("an exposed check", func(t *testing.T) {
		exposed := instance("exposed", sidecar(), func(s *service.Service) {
			s.Checks = []service.Check{{Type: service.CheckHTTP, Path: "/", Interval: "1h", Expose: true}}
		})
		r.register(t, exposed)
		r.settled(t, exposed)
		r.quiet(t, exposed)
		if got := r.inCatalog(t, exposed.ID+sidecarSuffix); !got.Proxy.Expose.Checks {
			t.Errorf("got %+v", got.Proxy)
		}
	})
	t.Run("changes", func(t *testing.T) { registersChanges(t, r) })
	t.Run("refuses", func(t *testing.T) { refuses(t, r) })
	t.Run("deregisters", func(t *testing.T) { deregisters(t, r) })
}

func registersAllFields(t *testing.T, r *rig) {
	web := instance("web", everything)
	r.removeAtEnd(t, web)
	proxyID, err := r.Register(t.Context(), r.consul, web)
	if err != nil || proxyID != web.ID+"-sidecar-proxy" {
		t.Fatalf("got %q, %v", proxyID, err)
	}
	r.settled(t, web)
	r.quiet(t, web)
	got := r.inCatalog(t, web.ID)
	if got.Service != "web" || got.Port != 8080 || got.Address != "127.0.0.1" ||
		!slices.Equal(got.Tags, []string{"a", "b"}) ||
		!reflect.DeepEqual(r.meta(t, got), marksAnd("k", "v")) || got.Weights != (api.AgentWeights{Passing: 5, Warning: 2}) ||
		got.TaggedAddresses["lan"] != (api.ServiceAddress{Address: "10.0.0.1", Port: 8080}) ||
		got.TaggedAddresses["wan"] != (api.ServiceAddress{Address: "192.0.2.4", Port: 99}) {
		t.Errorf("got %+v", got)
	}
	notes := map[string]string{}
	for id, c := range r.checks(t, web.ID) {
		notes[id] = c.Type + ": " + c.Notes
	}
	if want := map[string]string{
		"service:" + web.ID + ":1": "http: PUT http://127.0.0.1:8080/health?x=1 every 10s, within 2s",
		"service:" + web.ID + ":2": "tcp: ask the team of web (tcp 127.0.0.2:99 every 1m)",
		"service:" + web.ID + ":3": "grpc: grpc 127.0.0.1:8080/svc every 10s",
		"service:" + web.ID +
			":process": "ttl: passes while the workload's process lives, and fails 30s after the host has last said so",
	}; !reflect.DeepEqual(notes, want) {
		t.Errorf("checks: %v, want %v", notes, want)
	}
	side := r.inCatalog(t, proxyID)
	if side.Kind != api.ServiceKindConnectProxy || side.Service != "web-sidecar-proxy" || side.Port < 21000 ||
		!slices.Equal(side.Tags, []string{"a", "b"}) ||
		!reflect.DeepEqual(r.meta(t, side), marksAnd("k", "v")) || side.Proxy.DestinationServiceID != web.ID ||
		side.Proxy.LocalServiceAddress != "127.0.0.1" ||
		side.Proxy.LocalServicePort != 8080 || len(side.Proxy.Upstreams) != 3 ||
		side.Proxy.Expose.Paths[0].ListenerPort != 21000 {
		t.Errorf("got %+v of %+v", side, side.Proxy)
	}
	config, _ := json.Marshal(side.Proxy.Config)
	if want := `{"envoy_x":3,"nested":{"a":[1,"b"]},"no":false,"protocol":"http"}`; string(config) != want {
		t.Errorf("config %s, want %s", config, want)
	}
	if checks := r.checks(t, proxyID); len(checks) != 2 || checks["service:"+proxyID+":1"].Type != "tcp" ||
		checks["service:"+proxyID+":2"].Type != "alias" {
		t.Errorf("checks of the sidecar: %v", checks)
	}
	r.register(t, web)
	r.settled(t, web)
	r.quiet(t, web)
	if again := r.inCatalog(t, proxyID); again.Port != side.Port || again.ModifyIndex != side.ModifyIndex {
		t.Errorf("a second registration changed the sidecar: %+v", again)
	}
}

func registersChanges(t *testing.T, r *rig) {
	i := instance("changes", everything)
	r.register(t, i)
	r.settled(t, i)
	i.Service.Port, i.Service.Connect = "9090", nil
	i.Service.Checks = i.Service.Checks[1:2]
	i.Service.Checks[0].Interval = "2m"
	r.register(t, i)
	r.settled(t, i)
	r.quiet(t, i)
	if got := r.inCatalog(t, i.ID); got.Port != 9090 {
		t.Errorf("got %+v", got)
	}
	if got := r.inCatalog(t, i.ID+sidecarSuffix); got != nil {
		t.Errorf("the sidecar is still there: %+v", got)
	}
	checks := r.checks(t, i.ID)
	if c := checks["service:"+i.ID+":1"]; len(checks) != 1 || c == nil || c.Notes != "ask the team of web (tcp 127.0.0.2:99 every 2m)" {
		t.Errorf("checks: %v", checks)
	}
}

func refuses(t *testing.T, r *rig) {
	for name, c := range map[string]struct {
		change func(*service.Service)
		text   string
	}{
		"a label as port":     {func(s *service.Service) { s.Port = "http" }, `port "http" is not a port number`},
		"a port out of range": {func(s *service.Service) { s.Port = "65536" }, "not a port number"},
		"an unknown check": {
			func(s *service.Service) { s.Checks = []service.Check{{Type: "script"}} },
			`check 1: type "script"`,
		},
		"a check without port": {
			func(s *service.Service) { s.Port, s.Checks = "", []service.Check{{Type: "tcp"}} },
			"needs a port",
		},
		"a host in a path": {
			func(s *service.Service) { s.Checks = []service.Check{{Type: "http", Path: "//evil/"}} },
			"has a host",
		},
		"two process checks": {func(s *service.Service) {
			s.Checks = []service.Check{
				{Type: "process"},
				{Type: "process"},
			}
		}, "several checks"},
		"no interval": {func(s *service.Service) { s.Checks = []service.Check{{Type: "tcp"}} }, "Interval"},
		"a listener's label": {sidecar(func(s *service.SidecarService) {
			s.Proxy = &service.Proxy{Expose: &service.Expose{Paths: []service.ExposePath{{ListenerPort: "x"}}}}
		}), "listener_port"},
		"a sidecar's label": {sidecar(func(s *service.SidecarService) { s.Port = "x" }), "sidecar_service port"},
		"a tagged label": {
			func(s *service.Service) { s.TaggedAddresses = map[string]string{"lan": "h:x"} },
			"tagged address",
		},
		"what Consul refuses": {func(s *service.Service) { s.Address = "0.0.0.0" }, "Invalid service address"},
		"a bad timeout": {func(s *service.Service) {
			s.Connect = &service.Connect{Gateway: &service.Gateway{
				Mesh:  &service.Mesh{},
				Proxy: &service.GatewayProxy{ConnectTimeout: "x"},
			}}
		}, "connect_timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			i := instance("refused", c.change)
			_, err := r.Register(t.Context(), r.consul, i)
			wantCode(t, err, codes.InvalidArgument, c.text, "refused")
			if got := r.inCatalog(t, i.ID); got != nil {
				t.Errorf("it is there: %+v", got)
			}
		})
	}
}

func deregisters(t *testing.T, r *rig) {
	i, other := instance("ends", everything), instance("stays", sidecar())
	r.register(t, i, other)
	r.settled(t, i, other)
	for range 2 { // removing an unknown service succeeds
		check.NoError(t, r.Deregister(t.Context(), r.consul, i.Owner, i.ID))
	}
	check.Eventually(t, "the catalog has lost it", func() bool {
		return r.inCatalog(t, i.ID) == nil && r.inCatalog(t, i.ID+sidecarSuffix) == nil && len(r.checks(t, i.ID)) == 0
	})
	r.quiet(t, other)

	// A sidecar is left after another tool has removed its service.
	r.register(t, i)
	alone := instance("ends")
	if err := r.admin.Agent().ServiceRegister(&api.AgentServiceRegistration{
		Kind: api.ServiceKindConnectProxy, ID: alone.ID +
			sidecarSuffix, Name: "x", Port: 1, Proxy: &api.AgentServiceConnectProxyConfig{DestinationServiceName: "ends"},
	}); err != nil {
		t.Fatal(err)
	}
	check.NoError(t, r.admin.Agent().ServiceDeregister(i.ID))
	check.NoError(t, r.Deregister(t.Context(), r.consul, i.Owner, i.ID))
	if _, there := r.Cluster.Services(t)[i.ID+sidecarSuffix]; there {
		t.Error("the sidecar was not removed with its service")
	}
}

// TestGateways registers the kinds of gateways. Their config entries are written only once.
func TestGateways(t *testing.T) {
	t.Parallel()
	r := start(t, gatewayPolicy, consul.Options{})
	gateway := func(name string, g service.Gateway) registration.Instance {
		return instance(name, func(s *service.Service) { s.Connect = &service.Connect{Gateway: &g} })
	}
	proxy := &service.GatewayProxy{
		ConnectTimeout: "5s", EnvoyGatewayBindTaggedAddresses: true, EnvoyGatewayNoDefaultBind: true,
		EnvoyDNSDiscoveryType:     "STRICT_DNS",
		EnvoyGatewayBindAddresses: map[string]service.BindAddress{"all": {Address: "0.0.0.0", Port: 8443}},
		Config:                    map[string]any{"envoy_extra": "x"},
	}
	in := gateway("in", service.Gateway{Proxy: proxy, Ingress: &service.Ingress{
		TLS: &service.IngressTLS{
			Enabled: true, TLSMinVersion: "TLSv1_2", SDS: &service.SDS{ClusterName: "sds", CertResource: "in"},
		},
		Listeners: []service.IngressListener{
			{Port: 8443, Services: []service.IngressService{{Name: "web"}}},
			{Port: 8444, Protocol: "http", Services: []service.IngressService{{
				Name: "api", Hosts: []string{"api.test"},
				TLS:             &service.IngressTLS{SDS: &service.SDS{ClusterName: "sds", CertResource: "api"}},
				RequestHeaders:  &service.HeaderModifiers{Add: map[string]string{"a": "1"}, Remove: []string{"b"}},
				ResponseHeaders: &service.HeaderModifiers{Set: map[string]string{"c": "2"}},
				MaxConnections:  5, MaxPendingRequests: 6, MaxConcurrentRequests: 7,
			}}},
		},
	}})
	out := gateway("out",
		service.Gateway{Terminating: &service.Terminating{Services: []service.LinkedService{{
			Name: "db", CAFile: "/ca",
			SNI: "db.test",
		}}}})
	mesh := gateway("mesh", service.Gateway{Mesh: &service.Mesh{}})
	front := gateway("front", service.Gateway{API: &service.APIGateway{}})
	front.Service.Port = ""
	// An http listener of an ingress gateway requires that its service uses http.
	if _, _, err := r.admin.ConfigEntries().Set(&api.ServiceConfigEntry{
		Kind: api.ServiceDefaults, Name: "api",
		Protocol: "http",
	}, nil); err != nil {
		t.Fatal(err)
	}
	all := []registration.Instance{in, out, mesh, front}
	for _, i := range all {
		if id, err := r.Register(t.Context(), r.consul, i); err != nil || id != i.ID {
			t.Fatalf("got %q, %v", id, err)
		}
	}
	r.settled(t, all...)
	r.quiet(t, all...)
	for id, kind := range map[string]api.ServiceKind{
		in.ID: "ingress-gateway", out.ID: "terminating-gateway",
		mesh.ID: "mesh-gateway", front.ID: "api-gateway",
	} {
		if got := r.inCatalog(t, id); got.Kind != kind {
			t.Errorf("%s is a %s", id, got.Kind)
		}
	}
	config, _ := json.Marshal(r.inCatalog(t, in.ID).Proxy.Config)
	if want := `{"connect_timeout_ms":5000,"envoy_dns_discovery_type":"STRICT_DNS","envoy_extra":"x",` +
		`"envoy_gateway_bind_addresses":{"all":{"address":"0.0.0.0","port":8443}},"envoy_gateway_bind_tagged_addresses":true,"envoy_gateway_no_default_bind":true}`; string(config) != want {
		t.Errorf("config %s, want %s", config, want)
	}
	entries := r.admin.ConfigEntries()
	read := func(kind, name string) api.ConfigEntry {
		e, _, err := entries.Get(kind, name, nil)
		check.NoError(t, err)
		return e
	}
	ingress, terminating := read(api.IngressGateway, "in"), read(api.TerminatingGateway, "out")
	if e := ingress.(*api.IngressGatewayConfigEntry); !e.TLS.Enabled || e.Listeners[0].Protocol != "tcp" ||
		e.Listeners[1].Services[0].Hosts[0] != "api.test" {
		t.Errorf("got %+v", e)
	} else {
		behind, _ := json.Marshal(e.Listeners[1].Services[0])
		if want := `{"Name":"api","Hosts":["api.test"],"TLS":{"SDS":{"ClusterName":"sds","CertResource":"api"}},` +
			`"RequestHeaders":{"Add":{"a":"1"},"Remove":["b"]},"ResponseHeaders":{"Set":{"c":"2"}},` +
			`"MaxConnections":5,"MaxPendingRequests":6,"MaxConcurrentRequests":7}`; string(behind) != want {
			t.Errorf("got  %s\nwant %s", behind, want)
		}
		if e.TLS.SDS == nil || e.TLS.SDS.CertResource != "in" {
			t.Errorf("got %+v", e.TLS.SDS)
		}
	}
	if e := terminating.(*api.TerminatingGatewayConfigEntry); e.Services[0].SNI != "db.test" ||
		e.Services[0].CAFile != "/ca" {
		t.Errorf("got %+v", e)
	}
	r.register(t, all...)
	if r.proxy.Count("PUT", "/v1/config") != 2 ||
		read(api.IngressGateway, "in").GetModifyIndex() != ingress.GetModifyIndex() {
		t.Error("an unchanged entry was written again")
	}
	out.Service.Connect.Gateway.Terminating.Services[0].SNI = "other.test"
	r.register(t, out)
	if e := read(api.TerminatingGateway, "out").(*api.TerminatingGatewayConfigEntry); e.Services[0].SNI != "other.test" {
		t.Errorf("got %+v", e)
	}
	check.NoError(t, r.Deregister(t.Context(), r.consul, out.Owner, out.ID))
	read(api.TerminatingGateway, "out") // the entry is kept, because others may use it
}

// TestMeshPolicy checks that the basic policy is not enough for a gateway, and the error for that case.
func TestMeshPolicy(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	i := instance("out", func(s *service.Service) {
		terminating := &service.Terminating{Services: []service.LinkedService{{Name: "db"}}}
		s.Connect = &service.Connect{Gateway: &service.Gateway{Terminating: terminating}}
	})
	_, err := r.Register(t.Context(), r.consul, i)
	wantCode(t, err, codes.PermissionDenied, `mesh = "write"`, `config entry terminating-gateway "out"`,
		r.consul.TokenFile)

	nothing := r.consul
	nothing.TokenFile = r.TokenFile(t, r.Token(t))
	_, err = r.Register(t.Context(), nothing, instance("web"))
	wantCode(t, err, codes.PermissionDenied, `service_prefix "" { policy = "write" }`)
	_, _, err = r.Sync(t.Context(), nothing, registration.SyncRequest{Owner: owner})
	wantCode(t, err, codes.PermissionDenied, `agent_prefix "" { policy = "read" }`)
}

// TestHeartbeat updates the process check and no other check.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	i := instance("web", func(s *service.Service) {
		s.Checks = []service.Check{{Type: service.CheckProcess, Interval: "1h"}, {Type: service.CheckTCP, Interval: "1h"}}
	})
	r.register(t, i)
	processCheck := "service:" + i.ID + ":process"
	for _, step := range []struct {
		healthy bool
		status  string
	}{{true, "passing"}, {false, "critical"}} {
		beats := []registration.Beat{
			{ID: "pannier:n1:default:w:gone", Healthy: true},
			{ID: i.ID, Healthy: step.healthy, Output: "pid 7"},
		}
		check.NoError(t, r.Heartbeat(t.Context(), r.consul, beats))
		check.Eventually(t, "the check is "+step.status, func() bool {
			c := r.checks(t, i.ID)[processCheck]
			return c != nil && c.Status == step.status && c.Output == "pid 7"
		})
	}
	var many []registration.Beat
	for n := range 200 {
		many = append(many, registration.Beat{ID: strconv.Itoa(n), Healthy: true})
	}
	check.NoError(t, r.Heartbeat(t.Context(), r.consul, many))
	r.proxy.Add(consul.Match{Path: "/v1/agent/check/update"}, consul.Status(http.StatusTooManyRequests, "slow down"))
	before := len(r.proxy.Requests())
	wantCode(t, r.Heartbeat(t.Context(), r.consul, many), codes.ResourceExhausted)
	if n := len(r.proxy.Requests()) - before; n > 2*parallel {
		t.Errorf("%d requests to a Consul that refuses", n)
	}
}

// TestFaults checks that errors of a failing Consul have codes that report whether to retry.
func TestFaults(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	i := instance("web")
	calls := map[string]func() error{
		"register":   func() error { _, err := r.Register(t.Context(), r.consul, i); return err },
		"deregister": func() error { return r.Deregister(t.Context(), r.consul, i.Owner, i.ID) },
		"sync": func() error {
			_, _, err := r.Sync(t.Context(), r.consul,
				registration.SyncRequest{Owner: owner, Instances: []registration.Instance{i}})
			return err
		},
		"heartbeat": func() error {
			return r.Heartbeat(t.Context(), r.consul, []registration.Beat{{ID: i.ID}})
		},
	}
	for name, call := range calls {
		for _, c := range []struct {
			name  string
			fault consul.Fault
			code  codes.Code
		}{
			{"429", consul.Status(429, "rate limit exceeded"), codes.ResourceExhausted},
			{"403", consul.Status(403, "Permission denied"), codes.PermissionDenied},
			{"answer lost", consul.Cut(), codes.Unavailable},
		} {
			t.Run(name+" "+c.name, func(t *testing.T) {
				r.proxy.Add(consul.Match{}, c.fault)
				defer r.proxy.Clear()
				wantCode(t, call(), c.code, `Consul "default"`)
			})
		}
		t.Run(name+" after it", func(t *testing.T) {
			if err := call(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("stalled", func(t *testing.T) {
		r.proxy.Add(consul.Match{}, consul.Stall())
		defer r.proxy.Clear()
		_, err := r.Register(bounded(t, 100*time.Millisecond), r.consul, i)
		wantCode(t, err, codes.DeadlineExceeded)
	})
}

// A gateway without checks gets one of whether it listens, where its port is known.
func TestGatewaysHaveACheck(t *testing.T) {
	ingress := &service.Ingress{Listeners: []service.IngressListener{{Port: 8080}, {Port: 8081}}}
	for name, c := range map[string]struct {
		port    string
		checks  []service.Check
		gateway service.Gateway
		want    string // the first check's target
	}{
		"mesh":        {"8443", nil, service.Gateway{Mesh: &service.Mesh{}}, "127.0.0.1:8443"},
		"terminating": {"8443", nil, service.Gateway{Terminating: &service.Terminating{}}, "127.0.0.1:8443"},
		"ingress":     {"", nil, service.Gateway{Ingress: ingress}, "127.0.0.1:8080"},
		"api":         {"", nil, service.Gateway{API: &service.APIGateway{}}, ""},
		"its own": {
			"8443",
			[]service.Check{{Type: service.CheckTCP, Port: "1", Interval: "10s"}},
			service.Gateway{Mesh: &service.Mesh{}},
			"127.0.0.1:1",
		},
		"other addresses": {
			"8443", nil, service.Gateway{Mesh: &service.Mesh{}, Proxy: &service.GatewayProxy{EnvoyGatewayNoDefaultBind: true}}, "",
		},
	} {
		i := instance("gw", func(s *service.Service) {
			s.Port, s.Checks, s.Connect = c.port, c.checks, &service.Connect{Gateway: &c.gateway}
		})
		r := check.Must(build(i))(t)
		if c.want == "" && len(r.Checks) > 0 || c.want != "" && (len(r.Checks) != 1 || r.Checks[0].TCP != c.want) {
			t.Errorf("%s: the checks are %+v, want %q", name, r.Checks, c.want)
		}
	}
}
