package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/pannier/pannier/test/lib/testnet"
)

// clusterHosts are the hosts of the cluster; the servers come first.
var clusterHosts = []string{"server-1", "server-2", "server-3", "node-1", "node-2"}

const clusterServers = 3

// clusterConfig is the configuration of a host. Its timeouts are short, so that the demo does not take long.
const clusterConfig = `name       = %[1]q
bind_addr  = %[2]q
data_dir   = "%[1]s"
socket     = "%[1]s.sock"
plugin_dir = %[3]q

retry_join   = ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
encrypt_file = "gossip.key"

tls {
  ca_file   = "ca.pem"
  cert_file = "dc1-%[4]s-%[1]s.pem"
  key_file  = "dc1-%[4]s-%[1]s-key.pem"
}

server {
%[5]s}

csi_driver "shared" {
  command = [%[6]q, "-endpoint", "${endpoint}", "-node-id", "${node.name}", "-dir", %[7]q]
}

leave_plugins_on_stop = false
`

const (
	serverBlock = `  bootstrap_expect = %d
  heartbeat_ttl    = "2s"
  stop_after       = "6s"
  stop_margin      = "5s"
`
	nodeBlock = `  enabled = false
`
)

const sharedVolume = `id           = %q
type         = "csi"
plugin_id    = "shared"
capacity_min = "1MiB"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
`

const sharedWorkload = `workload %q {
%s  volume "data" {
    source      = %q
    destination = %q
  }
}
`

// singleConfig is the configuration of a host that is to join a cluster. It is in a folder, whose paths are absolute.
const singleConfig = `name       = %[1]q
data_dir   = %[2]q
socket     = "%[2]s.sock"
plugin_dir = %[3]q

server {
  heartbeat_ttl = "2s"
  stop_after    = "6s"
  stop_margin   = "5s"
}

csi_driver "shared" {
  command = [%[4]q, "-endpoint", "${endpoint}", "-node-id", "${node.name}", "-dir", %[5]q]
}

leave_plugins_on_stop = false
`

// configure writes a host's configuration.
func (s *clusterTeller) configure(on *testnet.Host, role string) error {
	if s.joins {
		text := fmt.Sprintf(singleConfig, on.Name, s.h.path(on.Name), filepath.Join(s.h.bin, "plugins"),
			filepath.Join(s.h.bin, "shareddriver"), s.h.path("volumes"))
		if on.Name == s.pagesOf {
			text += fmt.Sprintf(pagesBlock, s.h.path(pagesSocket), s.h.path(pagesToken))
		}
		return s.h.writeFile(filepath.Join(configOf(on.Name), "agent.hcl"), text)
	}
	block, more := nodeBlock, s.config
	if role == "server" {
		block, more = fmt.Sprintf(serverBlock, s.servers), ""
	}
	h := s.h
	return h.writeFile(on.Name+".hcl",
		fmt.Sprintf(clusterConfig, on.Name, on.Addr, filepath.Join(h.bin, "plugins"), role, block,
			filepath.Join(h.bin, "shareddriver"), h.path("volumes"))+more)
}

// writeClusterFiles writes the files that the demo's commands use.
func (h *host) writeClusterFiles() error {
	workload := func(id, before, volume string) error {
		return h.writeFile(id+".hcl", fmt.Sprintf(sharedWorkload, id, before, volume, h.mnt()))
	}
	return errors.Join(
		h.writeFile("data.hcl", fmt.Sprintf(sharedVolume, "data")),
		h.writeFile("scratch.hcl", fmt.Sprintf(sharedVolume, "scratch")),
		workload("db", "", "data"),
		workload("db-2", "  replaces = [\"db\"]\n\n", "data"),
		workload("other", "", "data"),
		workload("scratch-user", "", "scratch"),
		h.writeFile("web.policy.hcl", "agent {\n  policy = \"read\"\n}\n"),
		// Each line has the writer and the machine's uptime in seconds, such as "node-1 4711.05".
		h.writeFile("write", "while :; do read -r up idle </proc/uptime; echo \"$1 $up\" >>"+h.mnt()+
			"/log; sleep 0.1; done\n"),
	)
}
