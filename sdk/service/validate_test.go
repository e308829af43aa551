package service

import (
	"fmt"
	"strings"
	"testing"
)

// good returns a valid service that uses every feature.
func good() *Service {
	return &Service{
		Name: "web", Port: "http", Address: "${node.name}.example", Tags: []string{"${node.name}"},
		Meta: map[string]string{"version": "1"}, TaggedAddresses: map[string]string{"lan": "192.0.2.1"},
		Checks: []Check{
			{
				Name: "alive", Type: CheckHTTP, Path: "/health", Interval: "10s", Timeout: "2s",
				Header: map[string]HeaderValues{"A": {[]string{"b"}}}, Expose: true,
			},
			{Type: CheckTCP, Port: "8081", Interval: "1s"},
			{Type: CheckGRPC, Interval: "1m", GRPCService: "a.B", GRPCUseTLS: true, InitialStatus: "passing"},
			{Type: CheckProcess, Interval: "10s"},
		},
		Connect: &Connect{SidecarService: &SidecarService{Port: "public", Proxy: &Proxy{
			Upstreams: []Upstream{
				{DestinationName: "db", LocalBindPort: 5432},
				{DestinationName: "db", Datacenter: "dc2", LocalBindSocketPath: "/run/db.sock", LocalBindSocketMode: "0600"},
			},
			Expose: &Expose{Paths: []ExposePath{{
				Path: "/metrics", LocalPathPort: 9090, ListenerPort: "21500",
				Protocol: "http",
			}}},
			MeshGateway: &MeshGateway{Mode: "local"},
		}}},
		Weights: &Weights{Passing: 1},
	}
}

func ingress() *Service {
	return &Service{Name: "in", Connect: &Connect{Gateway: &Gateway{
		Proxy: &GatewayProxy{
			ConnectTimeout:            "5s",
			EnvoyGatewayBindAddresses: map[string]BindAddress{"all": {"0.0.0.0", 8443}},
		},
		Ingress: &Ingress{TLS: &IngressTLS{TLSMinVersion: "TLSv1_2"}, Listeners: []IngressListener{
			{Port: 8080, Services: []IngressService{{Name: "db"}}},
			{Port: 8081, Protocol: "http", Services: []IngressService{{Name: "a", Hosts: []string{"a.example"}}, {Name: "*"}}},
		}},
	}}}
}

func terminating() *Service {
	return &Service{Name: "out", Port: "http", Connect: &Connect{Gateway: &Gateway{
		Terminating: &Terminating{Services: []LinkedService{
			{Name: "a"},
			{Name: "b", CAFile: "/ca", CertFile: "/c", KeyFile: "/k"},
		}},
	}}}
}

var ports = map[string]bool{"http": true, "public": true}

func TestGoodServices(t *testing.T) {
	services := []Service{
		*good(),
		*ingress(),
		*terminating(),
		{Name: "Plain"},
		{Name: "native", Port: "1", Connect: &Connect{Native: true}},
		{Name: "mesh", Port: "65535", Connect: &Connect{Gateway: &Gateway{Mesh: &Mesh{}}}},
		{Name: strings.Repeat("a", 63)},
	}
	for _, p := range Validate(services, ports) {
		t.Errorf("%s: %v", p.Pointer, p)
	}
	if p := Validate(nil, nil); p != nil {
		t.Errorf("got %v", p)
	}
}

func TestBadServices(t *testing.T) {
	proxy := func(s *Service) *Proxy { return s.Connect.SidecarService.Proxy }
	for name, c := range map[string]struct {
		from   func() *Service
		change func(s *Service)
		want   string // one line per problem: pointer|text
	}{
		"no name": {good, func(s *Service) { s.Name = "" }, `/name|is required`},
		"name": {
			good, func(s *Service) { s.Name = "a_b" },
			`/name|"a_b" must be 1 to 63 letters, digits and hyphens, without a hyphen at an end`,
		},
		"capitals": {
			good, func(s *Service) { s.Name = "Web" },
			`/name|"Web" must be in small letters: Consul has no service identity for another`,
		},
		"port 0": {good, func(s *Service) { s.Port = "0" }, `/port|a number from 1 to 65535 is required, not 0`},
		"label": {
			good, func(s *Service) { s.Port = "htp" },
			`/port|the workload has no port "htp"; it has http, public`,
		},
		"no label": {
			good, func(s *Service) { s.Port = "${port.http}" },
			`/port|"${port.http}" is neither a number nor a label of a port`,
		},
		"address": {
			good, func(s *Service) { s.Address = "0.0.0.0" },
			`/address|"0.0.0.0" is no address that others can reach`,
		},
		"tagged address": {
			good, func(s *Service) { s.TaggedAddresses["lan"] = "::" },
			`/tagged_addresses/lan|"::" is no address that others can reach`,
		},
		"empty address": {good, func(s *Service) { s.TaggedAddresses["a/b"] = "" }, `/tagged_addresses/a~1b|is empty`},
		"meta key": {
			good, func(s *Service) { s.Meta["a.b"] = "" },
			`/meta/a.b|a key may have letters, digits, - and _ only`,
		},
		"long meta key": {
			good, func(s *Service) { s.Meta[strings.Repeat("k", 129)] = "" },
			`/meta/` + strings.Repeat("k", 129) + `|the key has 129 characters, 128 are allowed`,
		},
		"reserved meta": {
			good, func(s *Service) { s.CanaryMeta = map[string]string{"consul-x": ""} },
			`/canary_meta/consul-x|keys that begin with consul- are Consul's own`,
		},
		"meta value": {
			good, func(s *Service) { s.Meta["a"] = strings.Repeat("v", 513) },
			`/meta/a|has 513 bytes, 512 are allowed`,
		},
		"65 of meta": {good, func(s *Service) { s.Meta = pairs(65) }, `/meta|has 65 keys, 64 are allowed`},
		"weight": {
			good, func(s *Service) { s.Weights = &Weights{Passing: 0, Warning: 65536} },
			"/weights/passing|a number from 1 to 65535 is required, not 0\n/weights/warning|a number from 0 to 65535 is required, not 65536",
		},
		"check type": {good, func(s *Service) { s.Checks[0].Type = "" }, `/checks/0/type|is required`},
		"script": {
			good, func(s *Service) { s.Checks[0].Type = "script" },
			`/checks/0/type|"script" is not one of http, tcp, grpc, process`,
		},
		"no interval": {good, func(s *Service) { s.Checks[3].Interval = "" }, `/checks/3/interval|is required`},
		"interval": {
			good, func(s *Service) { s.Checks[0].Interval = "999ms" },
			`/checks/0/interval|a duration of 1s or more such as "10s" is required, not "999ms"`,
		},
		"timeout": {
			good, func(s *Service) { s.Checks[0].Timeout = "0s" },
			`/checks/0/timeout|a duration of 1ms or more such as "10s" is required, not "0s"`,
		},
		"status": {
			good, func(s *Service) { s.Checks[0].InitialStatus = "up" },
			`/checks/0/initial_status|"up" is not one of passing, warning, critical`,
		},
		"check port": {
			good, func(s *Service) { s.Checks[1].Port = "x" },
			`/checks/1/port|the workload has no port "x"; it has http, public`,
		},
		"no port at all": {
			good, func(s *Service) { s.Port, s.Checks = "", s.Checks[:2] },
			`/checks/0/port|is required: neither the check nor the service has one`,
		},
		"check address": {
			good, func(s *Service) { s.Checks[1].Address = "0.0.0.0" },
			`/checks/1/address|"0.0.0.0" is no address that others can reach`,
		},
		"counts": {
			good, func(s *Service) { s.Checks[0].FailuresBeforeWarning = 2 },
			`/checks/0/failures_before_warning|2 is more than failures_before_critical, which is 0`,
		},
		"negative": {
			good, func(s *Service) {
				s.Checks[0].SuccessBeforePassing, s.Checks[0].FailuresBeforeWarning, s.Checks[0].FailuresBeforeCritical = -1, -2, -1
			},
			"/checks/0/success_before_passing|a number from 0 to 2147483647 is required, not -1\n/checks/0/failures_before_warning|a number from 0 to 2147483647 is required, not -2\n/checks/0/failures_before_critical|a number from 0 to 2147483647 is required, not -1",
		},
		"no path": {good, func(s *Service) { s.Checks[0].Path = "" }, `/checks/0/path|is required`},
		"relative path": {
			good, func(s *Service) { s.Checks[0].Path = "health" },
			`/checks/0/path|"health" does not begin with /`,
		},
		"protocol": {
			good, func(s *Service) { s.Checks[0].Protocol = "h2" },
			`/checks/0/protocol|"h2" is not one of http, https`,
		},
		"path of tcp": {
			good, func(s *Service) { s.Checks[1].Path = "/" },
			`/checks/1/path|a check of type tcp has none; it is for http`,
		},
		"port of process": {
			good, func(s *Service) { s.Checks[3].Port = "1" },
			`/checks/3/port|a check of type process has none; it is for http, tcp, grpc`,
		},
		"expose of tcp": {
			good, func(s *Service) { s.Checks[1].Expose = true },
			`/checks/1/expose|a check of type tcp has none; it is for http, grpc`,
		},
		"expose alone": {
			good, func(s *Service) { s.Connect = nil },
			`/checks/0/expose|the service has no sidecar to go through`,
		},
		"nothing": {
			good, func(s *Service) { s.Connect = &Connect{}; s.Checks = nil },
			`/connect|exactly one of native, sidecar_service and gateway is required`,
		},
		"native portless": {
			good, func(s *Service) { *s = Service{Name: "a", Connect: &Connect{Native: true}} },
			`/connect/native|the service needs a port`,
		},
		"sidecar port": {
			good, func(s *Service) { s.Connect.SidecarService.Port = "x" },
			`/connect/sidecar_service/port|the workload has no port "x"; it has http, public`,
		},
		"sidecar meta": {
			good, func(s *Service) { s.Connect.SidecarService.Meta = map[string]string{"": ""} },
			`/connect/sidecar_service/meta/|a key may have letters, digits, - and _ only`,
		},
		"local port": {
			good, func(s *Service) { proxy(s).LocalServicePort = -1 },
			`/connect/sidecar_service/proxy/local_service_port|a number from 0 to 65535 is required, not -1`,
		},
		"mesh gateway": {
			good, func(s *Service) { proxy(s).MeshGateway.Mode = "far" },
			`/connect/sidecar_service/proxy/mesh_gateway/mode|"far" is not one of none, local, remote`,
		},
		"no destination": {
			good, func(s *Service) { proxy(s).Upstreams[0].DestinationName = "" },
			`/connect/sidecar_service/proxy/upstreams/0/destination_name|is required`,
		},
		"any destination": {
			good, func(s *Service) { proxy(s).Upstreams[0].DestinationName = "*" },
			`/connect/sidecar_service/proxy/upstreams/0/destination_name|must name one service`,
		},
		"destination": {
			good, func(s *Service) { proxy(s).Upstreams[1].Datacenter = "" },
			`/connect/sidecar_service/proxy/upstreams/1/destination_name|another upstream is the same service`,
		},
		"of type": {
			good, func(s *Service) { proxy(s).Upstreams[0].DestinationType = "x" },
			`/connect/sidecar_service/proxy/upstreams/0/destination_type|"x" is not one of service, prepared_query`,
		},
		"peer": {
			good, func(s *Service) { proxy(s).Upstreams[1].DestinationPeer = "p" },
			`/connect/sidecar_service/proxy/upstreams/1/datacenter|destination_peer is given too; only one of them can be`,
		},
		"no bind": {
			good, func(s *Service) { proxy(s).Upstreams[0].LocalBindPort = 0 },
			`/connect/sidecar_service/proxy/upstreams/0/local_bind_port|is required, or local_bind_socket_path`,
		},
		"two binds": {
			good, func(s *Service) { proxy(s).Upstreams[1].LocalBindPort = 1 },
			`/connect/sidecar_service/proxy/upstreams/1/local_bind_socket_path|local_bind_port is given too; only one of them can be`,
		},
		"one bind": {
			good, func(s *Service) { proxy(s).Upstreams = twice(5432) },
			`/connect/sidecar_service/proxy/upstreams/1|another upstream binds 127.0.0.1:5432 too`,
		},
		"bind label": {
			good, func(s *Service) {
				proxy(s).Upstreams[0].LocalBindPort, proxy(s).Upstreams[0].LocalBindPortLabel = 0, "db"
			},
			`/connect/sidecar_service/proxy/upstreams/0/local_bind_port|the workload has no port "db"; it has http, public`,
		},
		"bind number and label": {
			good, func(s *Service) { proxy(s).Upstreams[0].LocalBindPortLabel = "http" },
			`/connect/sidecar_service/proxy/upstreams/0/local_bind_port_label|local_bind_port is given too; only one of them can be`,
		},
		"one bind label": {
			good, func(s *Service) {
				u := twice(0)
				u[0].LocalBindPortLabel, u[1].LocalBindPortLabel = "http", "http"
				proxy(s).Upstreams = u
			},
			`/connect/sidecar_service/proxy/upstreams/1|another upstream binds 127.0.0.1:http too`,
		},
		"admin": {
			good, func(s *Service) { s.Connect.Admin = "udp" }, `/connect/admin|"udp" is not one of unix, tcp, none`,
		},
		"socket mode": {
			good, func(s *Service) { proxy(s).Upstreams[1].LocalBindSocketMode = "rw" },
			`/connect/sidecar_service/proxy/upstreams/1/local_bind_socket_mode|"rw" is no mode such as "0600"`,
		},
		"mode alone": {
			good, func(s *Service) { proxy(s).Upstreams[0].LocalBindSocketMode = "600" },
			`/connect/sidecar_service/proxy/upstreams/0/local_bind_socket_mode|there is no local_bind_socket_path`,
		},
		"upstream's gateway": {
			good, func(s *Service) { proxy(s).Upstreams[0].MeshGateway = &MeshGateway{Mode: "far"} },
			`/connect/sidecar_service/proxy/upstreams/0/mesh_gateway/mode|"far" is not one of none, local, remote`,
		},
		"bind port": {
			good, func(s *Service) { proxy(s).Upstreams[0].LocalBindPort = 65536 },
			`/connect/sidecar_service/proxy/upstreams/0/local_bind_port|a number from 0 to 65535 is required, not 65536`,
		},
		"socket path": {
			good, func(s *Service) { proxy(s).Upstreams[1].LocalBindSocketPath = "db.sock" },
			`/connect/sidecar_service/proxy/upstreams/1/local_bind_socket_path|"db.sock" does not begin with /`,
		},
		"listener label": {
			good, func(s *Service) { proxy(s).Expose.Paths[0].ListenerPort = "x" },
			`/connect/sidecar_service/proxy/expose/paths/0/listener_port|the workload has no port "x"; it has http, public`,
		},
		"exposed path": {
			good, func(s *Service) { proxy(s).Expose.Paths[0].Path = "" },
			`/connect/sidecar_service/proxy/expose/paths/0/path|is required`,
		},
		"local port's label": {
			good, func(s *Service) { proxy(s).LocalServicePortLabel = "x" },
			`/connect/sidecar_service/proxy/local_service_port|the workload has no port "x"; it has http, public`,
		},
		"exposed port's label": {
			good, func(s *Service) {
				proxy(s).Expose.Paths[0].LocalPathPort, proxy(s).Expose.Paths[0].LocalPathPortLabel = 0, "x"
			},
			`/connect/sidecar_service/proxy/expose/paths/0/local_path_port|the workload has no port "x"; it has http, public`,
		},
		"exposed h3": {
			good, func(s *Service) { proxy(s).Expose.Paths[0].Protocol = "h3" },
			`/connect/sidecar_service/proxy/expose/paths/0/protocol|"h3" is not one of http, http2`,
		},
		"exposed port": {
			good, func(s *Service) { proxy(s).Expose.Paths[0].LocalPathPort = 0 },
			`/connect/sidecar_service/proxy/expose/paths/0/local_path_port|a number from 1 to 65535 is required, not 0`,
		},
		"listener port": {
			good, func(s *Service) { proxy(s).Expose.Paths[0].ListenerPort = "" },
			`/connect/sidecar_service/proxy/expose/paths/0/listener_port|is required`,
		},
		"one listener": {good, func(s *Service) {
			proxy(s).Expose.Paths = append(proxy(s).Expose.Paths,
				ExposePath{Path: "/b", LocalPathPort: 1, ListenerPort: "21500"})
		}, `/connect/sidecar_service/proxy/expose/paths/1/listener_port|another path has 21500 too`},

		"no gateway": {
			ingress, func(s *Service) { s.Connect.Gateway.Ingress = nil; s.Port = "1" },
			`/connect/gateway|exactly one of api, ingress, mesh and terminating is required`,
		},
		"mesh portless": {
			ingress, func(s *Service) { s.Connect.Gateway = &Gateway{Mesh: &Mesh{}} },
			`/connect/gateway|the service needs a port, where the gateway listens`,
		},
		"connect timeout": {
			ingress, func(s *Service) { s.Connect.Gateway.Proxy.ConnectTimeout = "5" },
			`/connect/gateway/proxy/connect_timeout|a duration of 1ms or more such as "10s" is required, not "5"`,
		},
		"discovery": {
			ingress, func(s *Service) { s.Connect.Gateway.Proxy.EnvoyDNSDiscoveryType = "x" },
			`/connect/gateway/proxy/envoy_dns_discovery_type|"x" is not one of STRICT_DNS, LOGICAL_DNS`,
		},
		"bind address": {
			ingress, func(s *Service) {
				s.Connect.Gateway.Proxy.EnvoyGatewayBindAddresses["all"] = BindAddress{}
			},
			"/connect/gateway/proxy/envoy_gateway_bind_addresses/all/address|is required\n/connect/gateway/proxy/envoy_gateway_bind_addresses/all/port|a number from 1 to 65535 is required, not 0",
		},
		"tls": {
			ingress, func(s *Service) { s.Connect.Gateway.Ingress.TLS.TLSMinVersion = "1.2" },
			`/connect/gateway/ingress/tls/tls_min_version|"1.2" is not one of TLS_AUTO, TLSv1_0, TLSv1_1, TLSv1_2, TLSv1_3`,
		},
		"tls max": {
			ingress, func(s *Service) { s.Connect.Gateway.Ingress.TLS.TLSMaxVersion = "TLSv2" },
			`/connect/gateway/ingress/tls/tls_max_version|"TLSv2" is not one of TLS_AUTO, TLSv1_0, TLSv1_1, TLSv1_2, TLSv1_3`,
		},
		"no listeners": {
			ingress, func(s *Service) { s.Connect.Gateway.Ingress.Listeners = nil },
			`/connect/gateway/ingress/listeners|at least one listener is required`,
		},
		"listeners": {
			ingress, func(s *Service) { s.Connect.Gateway.Ingress.Listeners[1].Port = 8080 },
			`/connect/gateway/ingress/listeners/1/port|another listener has 8080 too`,
		},
		"no port": {
			ingress, func(s *Service) { s.Connect.Gateway.Ingress.Listeners[0].Port = 0 },
			`/connect/gateway/ingress/listeners/0/port|a number from 1 to 65535 is required, not 0`,
		},
		"nothing behind": {
			ingress, func(s *Service) { s.Connect.Gateway.Ingress.Listeners[0].Services = nil },
			`/connect/gateway/ingress/listeners/0/services|at least one service is required`,
		},
		"of no protocol": {
			ingress, func(s *Service) { s.Connect.Gateway.Ingress.Listeners[1].Protocol = "udp" },
			`/connect/gateway/ingress/listeners/1/protocol|"udp" is not one of tcp, http, http2, grpc`,
		},
		"tcp with many": {
			ingress, func(s *Service) { s.Connect.Gateway.Ingress.Listeners[1].Protocol = "tcp" },
			"/connect/gateway/ingress/listeners/1/services|a listener of tcp has one service, not 2\n/connect/gateway/ingress/listeners/1/services/0/hosts|a listener of tcp does not know the host\n/connect/gateway/ingress/listeners/1/services/1/name|a listener of tcp needs one service by its name",
		},
		"hosts of all": {
			ingress,
			func(s *Service) { s.Connect.Gateway.Ingress.Listeners[1].Services[1].Hosts = []string{"b"} },
			`/connect/gateway/ingress/listeners/1/services/1/hosts|services that are not named have hosts of their own`,
		},
		"hosts twice": {
			ingress,
			func(s *Service) {
				s.Connect.Gateway.Ingress.Listeners[1].Services[0].Hosts = []string{
					"b",
					"B",
				}
			}, `/connect/gateway/ingress/listeners/1/services/0/hosts|"B" is there twice in the listener`,
		},
		"behind twice": {
			ingress, func(s *Service) { s.Connect.Gateway.Ingress.Listeners[1].Services[1].Name = "a" },
			`/connect/gateway/ingress/listeners/1/services/1/name|another service of the listener has it too`,
		},
		"behind nameless": {
			ingress, func(s *Service) { s.Connect.Gateway.Ingress.Listeners[0].Services[0].Name = "" },
			`/connect/gateway/ingress/listeners/0/services/0/name|is required`,
		},
		"links nothing": {
			terminating, func(s *Service) { s.Connect.Gateway.Terminating.Services = nil },
			`/connect/gateway/terminating/services|at least one service is required`,
		},
		"link twice": {
			terminating, func(s *Service) { s.Connect.Gateway.Terminating.Services[1].Name = "a" },
			`/connect/gateway/terminating/services/1/name|another service of the gateway has it too`,
		},
		"link nameless": {
			terminating, func(s *Service) { s.Connect.Gateway.Terminating.Services[0].Name = "" },
			`/connect/gateway/terminating/services/0/name|is required`,
		},
		"half a pair": {
			terminating, func(s *Service) { s.Connect.Gateway.Terminating.Services[1].KeyFile = "" },
			`/connect/gateway/terminating/services/1|a client certificate needs ca_file, cert_file and key_file`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.from()
			c.change(s)
			var got []string
			for _, p := range Validate([]Service{*s}, ports) {
				got = append(got, strings.TrimPrefix(p.Pointer, "/0")+"|"+p.Text)
			}
			if text := strings.Join(got, "\n"); text != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", text, c.want)
			}
		})
	}
}

func TestProblemsSayWhere(t *testing.T) {
	s := good()
	s.Checks[0].Interval, s.Checks[1].Interval = "", ""
	s.Connect.SidecarService.Proxy.Upstreams[0].LocalBindPort = 0
	var got []string
	for _, p := range Validate([]Service{*s, {Name: "web"}}, ports) {
		got = append(got, p.Error())
	}
	want := `service "web": check "alive": interval: is required
service "web": check 2: interval: is required
service "web": connect: sidecar_service: proxy: upstreams "db": local_bind_port: is required, or local_bind_socket_path
service "web": name: another service of the workload has it too; each needs a name of its own`
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("got:\n%s\nwant:\n%s", text, want)
	}
}

func TestLabels(t *testing.T) {
	for _, label := range []string{"http", "_a", "a-1_B", strings.Repeat("a", 63)} {
		if err := CheckLabel(label); err != nil {
			t.Error(err)
		}
	}
	for _, label := range []string{"", "1", "1a", "-a", "a.b", "a b", strings.Repeat("a", 64)} {
		if CheckLabel(label) == nil {
			t.Errorf("accepted %q", label)
		}
	}
}

func pairs(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint(i)] = ""
	}
	return m
}

func twice(port int32) []Upstream {
	return []Upstream{{DestinationName: "a", LocalBindPort: port}, {DestinationName: "b", LocalBindPort: port}}
}
