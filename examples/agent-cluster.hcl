# A server of a cluster of three: what it has besides agent.hcl, every key with its
# default unless it says otherwise.
# pannier agent -config examples/agent-cluster.hcl

name           = "server-1"
bind_addr      = "192.0.2.11"
advertise_addr = "192.0.2.11" # default: bind_addr

ports {
  http = 7420 # with tls this serves the API too, by HTTPS
  rpc  = 7421 # other agents
  serf = 7422 # gossip, TCP and UDP
}

# Each is asked until it answers. default: none
retry_join = ["192.0.2.11", "192.0.2.12:7422", "server-3.example.com"]

# The key of gossip, the same on all hosts. default: gossip is in clear
# head -c 32 /dev/urandom | base64 >gossip.key; chmod 600 gossip.key
# The key itself would be: encrypt = "..."
encrypt_file = "/etc/pannier/gossip.key"

# pannier cluster init and pannier cluster join write this block. By hand:
# pannier tls ca create; pannier tls cert create -server -name server-1 -dc dc1
tls {
  ca_file     = "/etc/pannier/ca.pem"
  ca_key_file = "/etc/pannier/ca-key.pem" # default: this server lets no host join
  cert_file   = "/etc/pannier/dc1-server-server-1.pem"
  key_file    = "/etc/pannier/dc1-server-server-1-key.pem"
}

# The same on all servers.
server {
  enabled          = true # false: a node only
  bootstrap_expect = 3    # default: 1
  election_timeout = "500ms"
  heartbeat_ttl    = "30s"
  stop_after       = "60s"
  stop_margin      = "30s"
}

autopilot {
  cleanup_dead_servers      = true
  last_contact_threshold    = "200ms"
  server_stabilization_time = "10s"
  min_quorum                = 0 # default: a majority
}
