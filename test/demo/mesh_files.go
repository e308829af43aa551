package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

// greeting is the answer of db.
const greeting = "db greets you"

const consulConfig = `
server           = true
bootstrap_expect = 1
node_name        = "demo"
data_dir         = "consul"
bind_addr        = "127.0.0.1"
client_addr      = "127.0.0.1"
log_level        = "warn"

disable_update_check = true

ports {
  http     = -1
  grpc     = -1
  dns      = -1
  serf_wan = -1
  https    = %d
  grpc_tls = %d
  server   = %d
  serf_lan = %d
}
connect {
  enabled = true
}
acl {
  enabled        = true
  default_policy = "deny"
  tokens {
    initial_management = %[5]q
    agent              = %[5]q
  }
}
tls {
  defaults {
    ca_file   = "consul-agent-ca.pem"
    cert_file = "dc1-server-consul-0.pem"
    key_file  = "dc1-server-consul-0-key.pem"

    verify_outgoing = true
  }
  internal_rpc {
    verify_incoming        = true
    verify_server_hostname = true
  }
}
performance {
  raft_multiplier = 1
}
`

const meshAgentConfig = `
name       = "demo"
data_dir   = "data"
plugin_dir = %q
socket     = "pannier.sock"
ports {
  http = 0
}
leave_plugins_on_stop = false

consul {
  address    = "https://127.0.0.1:%d"
  token_file = "node.token"
  ca_file    = "consul-agent-ca.pem"
}
plugin "sids" {
  config {
    token_file = %q
  }
}
`

// envoyCommand drains connections quickly, so that the demo is short.
const envoyCommand = `["envoy", "-c", "${bootstrap}", "--concurrency", "1", "--base-id", "${base_id}", "--restart-epoch", "${restart_epoch}", "--drain-time-s", "1", "--parent-shutdown-time-s", "60", "--log-level", "error"]`

const accessLogs = `Kind = "proxy-defaults"
Name = "global"
AccessLogs {
  Enabled = true
}
`

const dbSpec = `workload "db" {
  user = "nobody"

  network {
    port "http" {}
    port "mesh" {}
  }
  service "db" {
    port = "http"
    connect {
      sidecar_service {
        port = "mesh"
        proxy {
          config {
            protocol = "http"
          }
        }
      }
    }
  }

  exec {
    command = "answer"
    args    = ["-listen", "127.0.0.1:${port.http}", "-text", "` + greeting + `"]
    user    = "nobody"
  }
  sidecar {
    command = ` + envoyCommand + `
  }
}
`

const webSpec = `workload "web" {
  user = "nobody"

  network {
    port "mesh" {}
  }
  service "web" {
    connect {
      sidecar_service {
        port = "mesh"
        proxy {
          upstreams {
            destination_name = "db"
            local_bind_port  = %d
          }
        }
      }
    }
  }

  exec {
    command = "sleep"
    args    = ["infinity"]
    user    = "nobody"
  }
  sidecar {
    command = ` + envoyCommand + `
  }
}
`

// ports are the loopback ports of the demo's Consul, and those at which web reaches db.
type ports struct {
	https, grpcTLS, server, serfLAN, upstream, moved int
}

// freePorts returns unused ports. All of them are held until the last one is found.
func freePorts() (p ports, err error) {
	var held []net.Listener
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	for _, port := range []*int{&p.https, &p.grpcTLS, &p.server, &p.serfLAN, &p.upstream, &p.moved} {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return p, fmt.Errorf("find a free port: %w", err)
		}
		held = append(held, l)
		*port = l.Addr().(*net.TCPAddr).Port
	}
	return p, nil
}

// writeMeshFiles writes the files that the demo's commands use.
func (h *host) writeMeshFiles(plugins string, p ports) error {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	const port = "    port = \"http\"\n"
	open := strings.Replace(dbSpec, port, port+"    intentions = [\"web\"]\n", 1)
	management := fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
	return errors.Join(
		// Envoys run as an unprivileged user and must be able to execute the programs in bin.
		os.Chmod(h.dir, 0o711),
		os.Mkdir(h.path("bin"), 0o755),
		h.writeFile("management.token", management),
		h.writeFile("consul.hcl", fmt.Sprintf(consulConfig, p.https, p.grpcTLS, p.server, p.serfLAN, management)),
		h.writeFile("agent.hcl", fmt.Sprintf(meshAgentConfig, plugins, p.https, h.path("sids.token"))),
		h.writeFile("access-logs.hcl", accessLogs),
		h.writeFile("db.hcl", dbSpec),
		h.writeFile("open.hcl", open),
		h.writeFile("second.hcl", strings.Replace(open, `workload "db"`, `workload "db-2"`, 1)),
		h.writeFile("web.hcl", fmt.Sprintf(webSpec, p.upstream)),
		h.writeFile("moved.hcl", fmt.Sprintf(webSpec, p.moved)),
	)
}
