package consul

import (
	"fmt"
	"os"
	"path/filepath"
)

// config returns a server's configuration. The test's additions go into a separate file.
func (c *Cluster) config(s *Server) map[string]any {
	if c.opts.Config != "" {
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			c.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.dir, "extra.hcl"), []byte(c.opts.Config), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	var join []string
	for _, other := range c.Servers {
		if other != s {
			join = append(join, fmt.Sprintf("%s:%d", other.bind(), other.Ports.SerfLAN))
		}
	}
	reachable := "127.0.0.1"
	if s.host != nil {
		reachable = "0.0.0.0"
	}
	fast := map[string]any{
		"gossip_interval": "50ms", "probe_interval": "200ms", "probe_timeout": "100ms",
		"suspicion_mult": 3,
	}
	config := map[string]any{
		"node_name":                   s.Name,
		"node_id":                     s.id,
		"datacenter":                  Datacenter,
		"data_dir":                    s.dataDir(),
		"bind_addr":                   s.bind(),
		"client_addr":                 reachable,
		"bootstrap_expect":            len(c.Servers),
		"retry_join":                  join,
		"retry_interval":              "100ms",
		"rejoin_after_leave":          true,
		"leave_on_terminate":          false,
		"log_level":                   "warn",
		"disable_update_check":        true,
		"disable_anonymous_signature": true,
		"disable_keyring_file":        true,
		"ports":                       s.Ports.config(c.opts),
		"connect":                     map[string]any{"enabled": true},
		"ui_config":                   map[string]any{"enabled": false},
		"performance":                 map[string]any{"raft_multiplier": 1, "rpc_hold_timeout": "1s"},
		"gossip_lan":                  fast,
		// A server that is down stays a member: it is restarted later, or the test needs it to be missed.
		"autopilot": map[string]any{"cleanup_dead_servers": false},
		"limits":    map[string]any{"http_max_conns_per_client": c.opts.HTTPConns},
	}
	if s.client {
		delete(config, "bootstrap_expect")
	}
	if c.opts.ACL {
		config["acl"] = map[string]any{
			"enabled":                  true,
			"default_policy":           "deny",
			"down_policy":              "extend-cache",
			"enable_token_persistence": false,
			"tokens":                   map[string]any{"initial_management": c.Management, "agent": c.Management},
		}
	}
	if c.ca != nil {
		config["tls"] = map[string]any{
			"defaults": map[string]any{
				"ca_file": c.ca.caFile, "cert_file": c.ca.certFile, "key_file": c.ca.keyFile,
				"verify_incoming": false, "verify_outgoing": true,
			},
			"internal_rpc": map[string]any{"verify_incoming": true, "verify_server_hostname": true},
			"https":        map[string]any{"verify_incoming": c.opts.ClientCerts},
		}
	}
	return config
}
