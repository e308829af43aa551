# A node of a cluster, which keeps no ledger: what it has besides agent.hcl. The servers'
# configuration is agent-cluster.hcl.
# pannier agent -config examples/agent-node.hcl

name      = "web-1"
bind_addr = "192.0.2.31"

# The servers.
retry_join = ["192.0.2.11", "192.0.2.12", "server-3.example.com"]

# The same as theirs.
encrypt_file = "/etc/pannier/gossip.key"

# pannier tls cert create -node -name web-1 -dc dc1
tls {
  ca_file   = "/etc/pannier/ca.pem"
  cert_file = "/etc/pannier/dc1-node-web-1.pem"
  key_file  = "/etc/pannier/dc1-node-web-1-key.pem"
}

server {
  enabled = false
}

# Reaches the same storage as on the other hosts.
csi_driver "storage" {
  type     = "node"
  endpoint = "unix:///run/csi/storage.sock"
}
