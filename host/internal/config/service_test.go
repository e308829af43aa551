package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pannier/pannier/host/internal/system/vars"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
)

// Blocks in the form that Nomad documents, and the same in JSON, convert to the messages in the files next to
// them.
func TestServicesOfNomad(t *testing.T) {
	files, err := filepath.Glob("testdata/nomad/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".want.json") {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			text := check.Must(os.ReadFile(strings.TrimSuffix(file, filepath.Ext(file)) + ".want.json"))(t)
			want := &hostv1.WorkloadSpec{}
			check.NoError(t, protojson.Unmarshal(text, want))
			got := check.Must(ReadWorkload(file))(t)
			if !proto.Equal(got, want) {
				t.Errorf("got  %s\nwant %s", protojson.Format(got), protojson.Format(want))
			}
		})
	}
}

// Together the pages show every key that a service can have.
func TestPagesHaveEveryKey(t *testing.T) {
	unseen := map[protoreflect.FullName]bool{}
	known((&hostv1.WorkloadSpec{}).ProtoReflect().Descriptor(), unseen)
	for _, name := range []string{"dashboard", "gateways", "several"} {
		spec := check.Must(ReadWorkload("testdata/nomad/" + name + ".hcl"))(t)
		see(spec.ProtoReflect(), unseen)
	}
	for name := range maps.Keys(unseen) {
		ours := slices.Contains([]protoreflect.Name{
			"devices", "volumes", "after", "replaces", "identity_only", "units", "admin", "intentions",
			"shutdown_delay", "kill_signal", "kill_timeout",
		}, name.Name())
		ours = ours || strings.HasSuffix(string(name), "_port_label")
		if !ours && !strings.Contains(string(name), ".VolumeRequest.") && !strings.Contains(string(name), ".MountOptions.") &&
			!strings.Contains(string(name), ".DeviceRequest.") && name != "pannier.host.v1.Exec.user" {
			t.Errorf("no page has %s", name)
		}
	}
}

// known collects the fields of a message and of those in it.
func known(m protoreflect.MessageDescriptor, into map[protoreflect.FullName]bool) {
	if strings.HasPrefix(string(m.FullName()), "google.") {
		return
	}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if !m.IsMapEntry() {
			into[f.FullName()] = true
		}
		if f.Message() != nil {
			known(f.Message(), into)
		}
	}
}

func see(m protoreflect.Message, unseen map[protoreflect.FullName]bool) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		delete(unseen, f.FullName())
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				see(v.Message(), unseen)
				return true
			})
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				see(v.List().Get(i).Message(), unseen)
			}
		case f.Message() != nil && !f.IsMap():
			see(v.Message(), unseen)
		}
		return true
	})
}

// The agent, which replaces the variables, sees the same variables and literals as the configuration's reader.
func TestTextsReachTheAgent(t *testing.T) {
	spec, err := ParseWorkload("w.hcl", []byte(`workload "w" {
  network {
    port "http" {}
    port "http-2" {}
  }
  service "web" {
    tags = [
      node.name, "${node.name}", "a-${node["name"]}-b", "$${node.name}", "$$$${x}", "%%{ if }", "plain", "$",
      port.http-2, "${port["http"]}:${port.http}", <<EOT
${workload.id}
EOT
    ]
  }
}`))
	check.NoError(t, err)
	s, err := service.FromProto(spec.GetServices()[0])
	check.NoError(t, err)
	s, err = vars.Service(s, valuesOf(vars.InServices([]string{"http", "http-2"})))
	want := []string{
		"<node.name>", "<node.name>", "a-<node.name>-b", "${node.name}", "$$${x}", "%{ if }", "plain", "$",
		"<port.http-2>", "<port.http>:<port.http>", "<workload.id>\n",
	}
	if err != nil || fmt.Sprint(s.Tags) != fmt.Sprint(want) {
		t.Errorf("got  %q, %v\nwant %q", s.Tags, err, want)
	}
}

func TestBadServices(t *testing.T) {
	in := func(lines string) string {
		return "workload \"w\" {\n  network {\n    port \"http\" {}\n  }\n  service \"web\" {\n    port = \"http\"\n" +
			lines + "\n  }\n}\n"
	}
	connect := func(lines string) string {
		return in("    connect {\n      sidecar_service {\n        proxy {\n" + lines + "\n        }\n      }\n    }")
	}
	const web = `workload "w": service "web": `
	const known = "known here are ${node.name}, ${node.datacenter}, ${workload.id}, ${workload.namespace}, ${secrets_dir}, ${port.http}; write $${ for a literal ${"
	for pair := range slices.Chunk([]string{
		"workload \"w\" {\n  service {\n    port = 1\n  }\n}", `w.hcl:2: workload "w": service: name: is required`,
		"workload \"w\" {\n  service \"a\" \"b\" {}\n}",
		`w.hcl:2: workload "w": extraneous label for service: Only 1 labels (name) are expected for service blocks`,
		in("name = \"x\""), `w.hcl:7: ` + web + `name: "x" is not the block's label; leave one of them out`,
		"workload \"w\" {\n  service {\n    name = \"a_b\"\n  }\n}",
		`w.hcl:3: workload "w": service "a_b": name: "a_b" must be 1 to 63 letters, digits and hyphens, without a hyphen at an end`,
		"workload \"w\" {\n  service {\n    name = \"${workload.id}\"\n  }\n}",
		`w.hcl:3: workload "w": service: name: variables are not allowed here; write $${ for a literal ${`,
		"workload \"w\" {\n  service \"a\" {}\n  service {\n    name = \"a\"\n  }\n}",
		`w.hcl:4: workload "w": service "a": name: another service of the workload has it too; each needs a name of its own`,
		"workload \"w\" {\n  servce \"a\" {}\n}",
		`w.hcl:2: workload "w": unsupported block "servce"; did you mean "service"?`,
		in("enable_tags_override = true"),
		`w.hcl:7: ` + web + `unsupported argument "enable_tags_override"; did you mean "enable_tag_override"?`,
		in("chek {}"), `w.hcl:7: ` + web + `unsupported block "chek"; did you mean "check"?`,
		"workload \"w\" {\n  service \"a\" {\n    port = \"http\"\n  }\n}",
		`w.hcl:3: workload "w": service "a": port: the workload has no port "http"; it has none`,
		in("check {\ntype = \"tcp\"\nport = []\ninterval = \"1s\"\n}"),
		`w.hcl:9: ` + web + `check: port: a number or a port's label is required, not a list`,
		in("provider = \"nomad\""),
		`w.hcl:7: ` + web +
			`provider: "nomad" is not supported: services are kept by Consul; leave it out, or write provider = "consul"`,
		in("address_mode = \"alloc\""),
		`w.hcl:7: ` + web +
			`address_mode: "alloc" is not supported: a workload has its node's network; leave it out, or write an address`,
		in("consul = \"a\"\ncluster = \"a\""),
		`w.hcl:8: ` + web + `cluster: is another word for consul, which is given too; leave one of them out`,
		in("task = \"a\""), `w.hcl:7: ` + web + `task: a workload has one program; leave it out`,
		in("on_update = \"never\""),
		`w.hcl:7: ` + web + `on_update: "never" is not one of require_healthy, ignore_warnings, ignore`,
		in("check_restart {\nlimit = 3\n}"),
		`w.hcl:7: ` + web +
			`check_restart: Pannier restarts no workload; systemd does, with WatchdogSec= and Restart= in the unit`,
		in("tags = \"a\""), `w.hcl:7: ` + web + `tags: a list of strings is required, not a string`,
		in("meta = [\"a\"]"), `w.hcl:7: ` + web + `meta: an object is required, not a list`,
		in("meta = { a = [] }"), `w.hcl:7: ` + web + `meta: a: a string is required, not a list`,
		in("meta = { \"a.b\" = 1 }"), `w.hcl:7: ` + web + `meta: a.b: a key may have letters, digits, - and _ only`,
		in("meta {\nconsul-x = 1\n}"),
		`w.hcl:7: ` + web + `meta: consul-x: keys that begin with consul- are Consul's own`,
		in("meta = {}\nmeta {}"), `w.hcl:7: ` + web + `meta: given as an argument and as a block`,
		in("weights {\npassing = 0\n}"),
		`w.hcl:8: ` + web + `weights: passing: a number from 1 to 65535 is required, not 0`,
		in("check {\ninterval = \"1s\"\n}"), `w.hcl:7: ` + web + `check: type: is required`,
		in("check {\nname = \"alive\"\ntype = \"script\"\ncommand = \"/bin/true\"\n}"),
		`w.hcl:9: ` + web +
			`check "alive": type: scripts are not run; let the program answer a check of type http, tcp or grpc, or use type = "process", which passes while the workload's process lives` + "\n" + `w.hcl:10: ` + web + `check: command: scripts are not run; let the program answer a check of type http, tcp or grpc, or use type = "process", which passes while the workload's process lives`,
		in("check {\ntype = \"tcp\"\ninterval = \"1s\"\naddress_mode = \"driver\"\n}"),
		`w.hcl:10: ` + web +
			`check: address_mode: "driver" is not supported: a workload has its node's network; leave it out, or write an address`,
		in("check {\nname = \"alive\"\ntype = \"tcp\"\n\ninterval = \"10\"\n}"),
		`w.hcl:11: ` + web + `check "alive": interval: a duration of 1s or more such as "10s" is required, not "10"`,
		in("check {\ntype = \"tcp\"\ninterval = 10\n}"),
		`w.hcl:9: ` + web + `check: interval: a string is required, not a number`,
		in("check {\ntype = \"http\"\npath = \"/\"\ninterval = \"1s\"\nheader {\nAccept = \"a\"\n}\n}"),
		`w.hcl:11: ` + web + `check: header: Accept: a list of strings is required, such as ["text/plain"]`,
		in("check {\ntype = \"tcp\"\ninterval = \"1s\"\ncheck_restart {}\n}"),
		`w.hcl:10: ` + web +
			`check: check_restart: Pannier restarts no workload; systemd does, with WatchdogSec= and Restart= in the unit`,
		in("check {\ntype = \"tcp\"\ninterval = \"1s\"\nadvertise = \"192.0.2.1\"\n}"),
		`w.hcl:10: ` + web + `check: advertise: write the address to check as address`,
		in("kind = \"api-gateway\""),
		`w.hcl:7: ` + web + `kind: "api-gateway" is the kind of a service with connect { gateway { api {} } }`,
		in("kind = \"mesh-gateway\"\nconnect {\ngateway {\napi {}\n}\n}"),
		`w.hcl:7: ` + web + `kind: "mesh-gateway" is the kind of a service with connect { gateway { mesh {} } }`,
		in("kind = \"connect-proxy\""),
		`w.hcl:7: ` + web + `kind: "connect-proxy" is not supported; leave it out: what a service is follows from connect`,
		in("connect {\ngateway {\napi {}\nmesh {}\n}\n}"),
		`w.hcl:8: ` + web + `connect: gateway: exactly one of api, ingress, mesh and terminating is required`,
		in(
			"connect {\ngateway {\ningress {\nlistener {\nport = 1\nservice {\nname = \"a\"\nrequest_headers {}\n}\n}\n}\n}\n}"),
		`w.hcl:14: ` +
			web + `connect: gateway: ingress: listener: service "a": request_headers: a listener of tcp knows no headers`,
		in(
			"connect {\ngateway {\ningress {\nlistener {\nport = 1\nservice {\nname = \"a\"\ntls {\nenabled = true\n}\n}\n}\n}\n}\n}"),
		`w.hcl:14: ` +
			web + `connect: gateway: ingress: listener: service "a": tls: a service has a certificate of its own, sds, and nothing else: write the rest in ingress { tls }`,
		in(
			"connect {\ngateway {\ningress {\ntls {\nsds {\ncluster_name = \"a\"\n}\n}\nlistener {\nport = 1\nservice {\nname = \"a\"\n}\n}\n}\n}\n}"),
		`w.hcl:11: ` +
			web + `connect: gateway: ingress: tls: sds: cluster_name and cert_resource are required`,
		"workload \"w\" {\n  service \"9\" {\n    connect {\n      gateway {\n        terminating {\n          service {\n            name = \"a\"\n          }\n        }\n      }\n    }\n  }\n}",
		`w.hcl:4: workload "w": service "9": connect: gateway: the service needs a port, where the gateway listens`,
		in("connect {}"), `w.hcl:7: ` + web + `connect: exactly one of native, sidecar_service and gateway is required`,
		"workload \"w\" {\n  service \"web\" {\n    connect {\n\n      native = true\n    }\n  }\n}",
		`w.hcl:5: ` + web + `connect: native: the service needs a port`,
		in("connect {\nsidecar_service {\n\nport = \"x\"\n}\n}"),
		`w.hcl:10: ` + web + `connect: sidecar_service: port: the workload has no port "x"; it has http`,
		in("connect {\nsidecar_service {}\nsidecar_task {\nresources {}\n}\n}"),
		`w.hcl:9: ` + web +
			`connect: sidecar_task: a proxy is a program of your choice; write a sidecar block in the workload instead`,
		connect("transparent_proxy {}"),
		`w.hcl:10: ` + web +
			`connect: sidecar_service: proxy: transparent_proxy: the node's network is not redirected for a workload; write upstreams blocks`,
		connect("upstreams {\ndestination = \"a\"\n}"),
		`w.hcl:10: ` + web + `connect: sidecar_service: proxy: upstreams: destination_name: is required` + "\n" +
			`w.hcl:10: ` + web +
			`connect: sidecar_service: proxy: upstreams: local_bind_port: is required, or local_bind_socket_path` + "\n" +
			`w.hcl:11: ` + web + `connect: sidecar_service: proxy: upstreams: unsupported argument "destination"`,
		connect("upstreams {\ndestination_name = \"db\"\nlocal_bind_port = 70000\n}"),
		`w.hcl:12: ` + web +
			`connect: sidecar_service: proxy: upstreams "db": local_bind_port: a number from 0 to 65535 is required, not 70000`,
		connect("upstreams {\ndestination_name = \"db\"\nlocal_bind_port = \"db\"\n}"),
		`w.hcl:12: ` + web + `connect: sidecar_service: proxy: upstreams "db": local_bind_port: the workload has no port "db"; it has http`,
		connect(
			"upstreams {\ndestination_name = \"a\"\nlocal_bind_port = 1\n}\nupstreams {\ndestination_name = \"b\"\nlocal_bind_port = 1\n}"),
		`w.hcl:14: ` + web + `connect: sidecar_service: proxy: upstreams "b": another upstream binds 127.0.0.1:1 too`,
		connect("config = \"a\""),
		`w.hcl:10: ` + web + `connect: sidecar_service: proxy: config: an object is required, not a string`,
		connect("config = {}\nconfig {}"),
		`w.hcl:10: ` + web + `connect: sidecar_service: proxy: config: given as an argument and as a block`,
		connect("config {\na = 1\na {}\n}"),
		`w.hcl:10: ` + web + `connect: sidecar_service: proxy: config.a: given as an argument and as a block`,
		connect("config {\na = [\"${nod.name}\"]\n}"),
		`w.hcl:11: ` + web + `connect: sidecar_service: proxy: config.a: unknown variable ${nod.name}; ` + known,
		in("connect {\ngateway {\nproxy {\nenvoy_gateway_bind_addresses \"a\" {}\n}\nmesh {}\n}\n}"),
		`w.hcl:10: ` + web + `connect: gateway: proxy: envoy_gateway_bind_addresses "a": address: is required` + "\n" +
			`w.hcl:10: ` + web +
			`connect: gateway: proxy: envoy_gateway_bind_addresses "a": port: a number from 1 to 65535 is required, not 0`,
		in(
			"connect {\ngateway {\nproxy {\nenvoy_gateway_bind_addresses \"a\" {\naddress = \"::\"\nport = 1\n}\nenvoy_gateway_bind_addresses \"a\" {\naddress = \"::\"\nport = 1\n}\n}\nmesh {}\n}\n}"),
		`w.hcl:14: ` + web + `connect: gateway: proxy: envoy_gateway_bind_addresses "a": block given twice`,
		in("connect {\ngateway {\ningress {}\n}\n}"),
		`w.hcl:9: ` + web + `connect: gateway: ingress: listeners: at least one listener is required`,
		in(
			"connect {\ngateway {\ningress {\nlistener {\nport = 1\nservice {\nhosts = [\"a\"]\n}\n}\n}\n}\n}"),
		`w.hcl:12: ` +
			web + `connect: gateway: ingress: listener: service: name: is required` + "\n" + `w.hcl:13: ` + web +
			`connect: gateway: ingress: listener: service: hosts: a listener of tcp does not know the host`,
		in("connect {\ngateway {\nmesh {\na = 1\n}\n}\n}"),
		`w.hcl:10: ` + web + `connect: gateway: mesh: unsupported argument "a"`,
		in(
			"connect {\ngateway {\nterminating {\nservice {\nname = \"a\"\nkey_file = \"/k\"\n}\n}\n}\n}"),
		`w.hcl:10: ` + web +
			`connect: gateway: terminating: service "a": a client certificate needs ca_file, cert_file and key_file`,
		in("tags = [\"${port.htp}\"]"), `w.hcl:7: ` + web + `tags: unknown variable ${port.htp}; ` + known,
		in("tags = [\"${bootstrap}\"]"), `w.hcl:7: ` + web + `tags: unknown variable ${bootstrap}; ` + known,
		in("tags = [\"${NOMAD_ALLOC_ID}\"]"), `w.hcl:7: ` + web + `tags: unknown variable ${NOMAD_ALLOC_ID}; ` + known,
		in("tags = [\"${node}\"]"), `w.hcl:7: ` + web + `tags: unknown variable ${node}; ` + known,
		in("tags = [node.name == \"a\" ? \"b\" : \"c\"]"),
		`w.hcl:7: ` + web + `tags: a variable can only stand in a text, as in "${node.name}": it has no value yet`,
		in("tags = [\"%{ if node.name == \"a\" }b%{ endif }\"]"),
		`w.hcl:7: ` + web + `tags: a variable can only stand in a text, as in "${node.name}": it has no value yet`,
		in("meta = { \"${node.name}\" = 1 }"),
		`w.hcl:7: ` + web + `meta: a variable can only stand in a text, as in "${node.name}": it has no value yet`,
		in("tags = [upper(node.name)]"),
		`w.hcl:7: ` + web + `tags: function calls not allowed: Functions may not be called here`,
		in("tags = [\"${\"$\"}${node.name}\"]"), `w.hcl:7: ` + web + `tags: a $ cannot stand before ${node.name}`,
		in("tags = [\"\\u0000node.name\\u0000\"]"), `w.hcl:7: ` + web + `tags: must not contain a NUL character`,
		in("tags = [\"\\u0000x\\u0000${node.name}\"]"), `w.hcl:7: ` + web + `tags: must not contain a NUL character`,
		in("tags = [\"\\u0000\"]"), `w.hcl:7: ` + web + `tags: must not contain a NUL character`,

		"workload \"w\" {\n  network {\n    mode = \"bridge\"\n  }\n}",
		`w.hcl:3: workload "w": network: mode: "bridge" is not supported: a workload has its node's network; leave it out, or write mode = "host"`,
		"workload \"w\" {\n  network {\n    dns {}\n  }\n}",
		`w.hcl:3: workload "w": network: dns: a workload has its node's resolver; leave it out`,
		"workload \"w\" {\n  network {}\n  network {}\n}",
		`w.hcl:3: workload "w": network: block given twice, first on line 2`,
		"workload \"w\" {\n  network {\n    port \"a\" {\n      to = 80\n    }\n  }\n}",
		`w.hcl:4: workload "w": network: port "a": to: a workload has its node's network, where a port is one number inside and outside; leave it out`,
		"workload \"w\" {\n  network {\n    port \"80\" {}\n  }\n}",
		`w.hcl:3: workload "w": network: port "80": "80" is no label: up to 63 letters, digits, - and _, beginning with a letter or _`,
		"workload \"w\" {\n  network {\n    port \"a\" {}\n    port \"a\" {}\n  }\n}",
		`w.hcl:4: workload "w": network: port "a": is there twice; each needs a label of its own`,
		"workload \"w\" {\n  network {\n    port \"a\" { static = 80 }\n    port \"b\" { static = 80 }\n  }\n}",
		`w.hcl:4: workload "w": network: port "b": static: 80 is that of port "a" too`,
		"workload \"w\" {\n  network {\n    port \"a\" { static = 0 }\n  }\n}",
		`w.hcl:3: workload "w": network: port "a": static: a whole number from 1 to 65535 is required`,
		"workload \"w\" {\n  network {\n    port \"a\" { static = \"http\" }\n  }\n}",
		`w.hcl:3: workload "w": network: port "a": static: a whole number from 1 to 65535 is required`,
		"workload \"w\" {\n  canary = 1\n}", `w.hcl:2: workload "w": canary: true or false is required, not a number`,
		"workload \"w\" {\n  exec {\n    command = \"${bootstrap}\"\n  }\n}",
		`w.hcl:3: workload "w": exec: command: variables are not allowed here; write $${ for a literal ${`,
		"workload \"w\" {\n  exec {\n    command = \"a\"\n    args = [\"${x}\"]\n  }\n}",
		`w.hcl:4: workload "w": exec: args: unknown variable ${x}; known here are ${` +
			strings.Join(vars.InPrograms(nil), "}, ${") + `}; write $${ for a literal ${`,
		"workload \"w\" {\n  service \"a\" {}\n  sidecar {\n    command = [\"envoy\"]\n  }\n}",
		`w.hcl:3: workload "w": sidecar: service: no service of the workload has a proxy; write a connect block with sidecar_service or gateway`,
	}, 2) {
		src, want := pair[0], pair[1]
		_, err := ParseWorkload("w.hcl", []byte(src))
		wantProblems(t, err, want)
	}
}

// A problem is reported at its own line, however deeply it is nested.
func TestProblemsStandAtTheirLines(t *testing.T) {
	src := `workload "w" {
  service "a" {
    weights {
      warning = -1 # BAD
    }
    connect {
      sidecar_service {
        port = "x" # BAD
        proxy {
          local_service_port = -1 # BAD
          mesh_gateway {
            mode = "x" # BAD
          }
          upstreams {
            destination_name = "*" # BAD
            local_bind_port  = 1
            mesh_gateway {
              mode = "x" # BAD
            }
          }
          expose {
            path {
              path            = "x" # BAD
              protocol        = "x" # BAD
              local_path_port = 0   # BAD
              listener_port   = "x" # BAD
            }
          }
        }
      }
    }
  }
  service "b" {
    connect {
      gateway {
        proxy {
          connect_timeout          = "x" # BAD
          envoy_dns_discovery_type = "x" # BAD
          envoy_gateway_bind_addresses "a" {
            address = "" # BAD
            port    = 0  # BAD
          }
        }
        ingress {
          tls {
            tls_min_version = "x" # BAD
          }
          listener {
            port     = 0   # BAD
            protocol = "x" # BAD
            service {
              name = "" # BAD
            }
          }
        }
      }
    }
  }
  service "c" {
    port = 1
    connect {
      gateway {
        terminating {
          service {
            name = "" # BAD
          }
        }
      }
    }
  }
}
`
	_, err := ParseWorkload("w.hcl", []byte(src))
	var got, want []string
	var problems Problems
	if !errors.As(err, &problems) {
		t.Fatal(err)
	}
	for _, p := range problems {
		got = append(got, fmt.Sprintf("%d", p.Line))
	}
	for i, line := range strings.Split(src, "\n") {
		if strings.Contains(line, "# BAD") {
			want = append(want, fmt.Sprintf("%d", i+1))
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v\n%v", got, want, problems)
	}
}

func TestBadSidecars(t *testing.T) {
	const services = "service \"a\" {\n connect {\n sidecar_service {}\n }\n}\nservice \"b\" {\n connect {\n sidecar_service {}\n }\n}\nservice \"c\" {}\n"
	for pair := range slices.Chunk([]string{
		"sidecar {\ncommand = [\"e\"]\n}",
		`w.hcl:13: workload "w": sidecar: service: is required, since several services have a proxy: a, b`,
		"sidecar {\nservice = \"c\"\ncommand = [\"e\"]\n}",
		`w.hcl:14: workload "w": sidecar: service: "c" is no service with a proxy; these are: a, b`,
		"sidecar {\nservice = \"a\"\ncommand = [\"e\"]\n}\nsidecar {\nservice = \"a\"\ncommand = [\"e\"]\n}",
		`w.hcl:18: workload "w": sidecar: service: "a" has a sidecar already`,
		"sidecar {\nservice = \"a\"\n}",
		`w.hcl:13: workload "w": sidecar: command: is required: a list of the program and its arguments, such as ["envoy", "-c", "${bootstrap}"]`,
		"sidecar {\nservice = \"a\"\ncommand = [\"e\"]\nenv {\nA = []\n}\n}",
		`w.hcl:17: workload "w": sidecar: env.A: a string is required, not a list`,
	}, 2) {
		src, want := pair[0], pair[1]
		_, err := ParseWorkload("w.hcl", []byte("workload \"w\" {\n"+services+src+"\n}"))
		wantProblems(t, err, want)
	}
}

// The different forms that a service can have in JSON are distinguished.
func TestServicesInJSON(t *testing.T) {
	for text, want := range map[string]string{
		`{"web": {}}`:                                             "web",
		`{"name": "web"}`:                                         "web",
		`[{"name": "a"}, {"b": {}, "c": {}}]`:                     "a b c",
		`{"web": {"name": "web"}, "b": [{}]}`:                     "web b",
		`{"name": "web", "connect": {"native": true}, "port": 1}`: "web",
		`{"name": {}}`:                                            "name",
	} {
		spec, err := ParseWorkload("w.json", []byte(`{"workload": {"w": {"service": `+text+`}}}`))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var names []string
		for _, s := range spec.GetServices() {
			names = append(names, s.GetName())
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{
		`{}`:                                  `w.json:1: workload "w": service: name: is required`,
		`{"name": "a", "tgas": []}`:           `w.json:1: workload "w": service: unsupported argument "tgas"; did you mean "tags"?`,
		`{"name": "a", "task": "b"}`:          `w.json:1: workload "w": service: task: a workload has one program; leave it out`,
		`{"name": "a", "tags": ["${x.y}"]}`:   `w.json:1: workload "w": service "a": tags: unknown variable ${x.y}; known here are ${node.name}, ${node.datacenter}, ${workload.id}, ${workload.namespace}, ${secrets_dir}; write $${ for a literal ${`,
		`{"name": "a", "meta": {"a.b": "c"}}`: `w.json:1: workload "w": service "a": meta: a.b: a key may have letters, digits, - and _ only`,
		`[]`:                                  ``,
	} {
		_, err := ParseWorkload("w.json", []byte(`{"workload": {"w": {"service": `+text+`}}}`))
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		wantProblems(t, err, want)
	}
}

// Each port that the program or its proxy listens on may be a label of the workload's ports.
func TestPortsOfAProxyTakeLabels(t *testing.T) {
	spec := check.Must(ParseWorkload("w.hcl", []byte(`workload "w" {
  network {
    port "http" {}
  }
  service "a" {
    connect {
      sidecar_service {
        proxy {
          local_service_port = "http"
          upstreams {
            destination_name = "b"
            local_bind_port  = "http"
          }
          expose {
            path {
              path            = "/"
              protocol        = "http"
              local_path_port = "http"
              listener_port   = 1
            }
          }
        }
      }
    }
  }
}`)))(t)
	proxy := spec.GetServices()[0].GetConnect().GetSidecarService().GetProxy()
	for key, got := range map[string]string{
		"local_service_port": proxy.GetLocalServicePortLabel(),
		"local_bind_port":    proxy.GetUpstreams()[0].GetLocalBindPortLabel(),
		"local_path_port":    proxy.GetExpose().GetPaths()[0].GetLocalPathPortLabel(),
	} {
		if got != "http" {
			t.Errorf("%s is %q", key, got)
		}
	}
}
