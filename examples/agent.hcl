# The agent's configuration, every key with its default unless it says otherwise. What
# only a cluster needs is in agent-cluster.hcl.
# pannier agent -config examples/agent.hcl

name       = "host-1" # default: the hostname
datacenter = "dc1"

data_dir   = "/var/lib/pannier"
plugin_dir = "/usr/lib/pannier/plugins" # default: plugins/ beside the program, then this

socket       = "/run/pannier/pannier.sock"
socket_group = "pannier" # default: none, only root

# Health and metrics, nothing else.
bind_addr = "127.0.0.1"
ports {
  http = 7420 # 0: any free one

  # What workloads are given that name no number.
  min_dynamic_port = 20000
  max_dynamic_port = 32000
  max_per_namespace = 2000
}

# Tokens and bootstrap files of workloads; a tmpfs.
secrets_dir = "/var/lib/pannier/secrets"

log_level  = "info" # trace, debug, info, warn, error
log_format = "text" # or json

# Leave plugins and drivers running when the agent stops, for the next one to find.
leave_plugins_on_stop = true

server {
  enabled          = true
  bootstrap_expect = 1
}

# A plugin of the plugin directory runs without a block too.
plugin "csi-bridge" {
  args = []
  user = "" # default: the agent's, as for group
  config {}

  version         = "~> 1.2" # default: any
  keep_versions   = 3        # copies that served, to go back to
  state_limit     = "2MiB"   # what the agent keeps for it; default "1MiB"
  rollback_window = "30s"    # after a swap, a failure brings back the one before
}

# Only plugins that this minisign key has signed are run.
plugin_signing {
  keys              = ["RWSE6MWlJCUgTCdTUEMYq5p3xb0PQhZ6Bh+CtJrR4GNlqIdpZX6h0dCo"] # or the path of such a file
  require_signature = true                                                           # the default
}

# A driver that the agent runs and keeps running.
csi_driver "local" {
  command = [
    "/usr/lib/pannier/csi-local",
    "-endpoint", "${endpoint}",
    "-node-id", "${node.name}",
    "-data-dir", "${data_dir}/volumes",
  ]
}

# One whose program is checked, and that may not use more than this.
csi_driver "remote" {
  command  = ["/usr/lib/csi/remote", "--endpoint=${endpoint}"]
  user     = "root" # default: the agent's
  env = {
    REGION = "east"
    TOKEN  = "file:///etc/pannier/remote.token" # read at each start of the driver
  }
  checksum = "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae" # default: any
  overlap  = true # a new program is tried next to the old one; default: false
  limits {
    memory     = "1GiB" # default: no limits
    open_files = 4096
    processes  = 1024
  }
}

# One whose controller is another process than its node service. Each may have command, env, user, checksum,
# overlap and limits.
csi_driver "cloud" {
  command = ["/usr/lib/csi/cloud", "-node", "--endpoint=${endpoint}"]
  controller {
    command = ["/usr/lib/csi/cloud", "-controller", "--endpoint=${endpoint}"]
  }
}

# A storage plugin that is its own driver.
csi_driver "scratch" {
  plugin = "scratch" # default: csi-bridge, or the only storage plugin
}

# A driver that someone else runs, here in a container.
csi_driver "hostpath" {
  type                   = "monolith" # node, controller, monolith
  endpoint               = "unix:///run/csi/hostpath.sock"
  mount_dir              = "/csi"
  stage_publish_base_dir = "/local/csi"
  health_timeout         = "30s"
  settle_time            = "10m" # how long a call that was never answered may go on
  allowed_mount_flags    = ["errors=remount-ro"] # besides ro, noatime and the like
  ephemeral_volumes {                            # workloads may have volumes that the driver makes for them
    namespaces = ["default"]                     # default: in all namespaces
    secrets {
      token = "file:///etc/pannier/hostpath.token"
    }
  }
  timeout {
    stage     = "5m" # each: default 2m
    unstage   = "2m"
    publish   = "2m"
    unpublish = "2m"
  }
}

# The Consul that services go to unless they name another. There is none by default.
consul {
  address = "127.0.0.1:8500" # or https://…, unix:///…
}

# What may write ACLs, to mint tokens of services; read by this plugin only.
plugin "sids" {
  config {
    token_file = "/etc/pannier/sids.token"
  }
}

# A front door: where it listens, and what it may do of the API.
plugin "web" {
  listen "http" {
    address = "127.0.0.1:8080" # or unix:// with mode, owner and group
  }
  api {
    policy = "web" # where ACLs are on
  }
}

# Variables for the URLs of proxies' metrics: envoy_dogstatsd_url = "$DOGSTATSD_URL" in a spec.
plugin "envoy-bootstrap" {
  env = {
    DOGSTATSD_URL = "unix:///run/datadog/dsd.socket"
    HOST_IP       = "192.0.2.11" # default: advertise_addr, else bind_addr
  }
}

# One with ACLs and TLS, where services get their tokens by login.
consul "east" {
  address         = "https://127.0.0.1:9501"
  token_file      = "/etc/pannier/consul-east.token" # default: no token
  ca_file         = "/etc/pannier/consul-ca.pem"     # default: the system's
  cert_file       = "/etc/pannier/consul.pem"        # default: none
  key_file        = "/etc/pannier/consul-key.pem"
  tls_server_name = "server.east.consul"     # default: the host of the address
  grpc_address    = "https://127.0.0.1:9503" # default: asked of the Consul agent
  grpc_ca_file    = "/etc/pannier/consul-ca.pem"
  datacenter      = "east" # default: the Consul agent's, as are the next two
  namespace       = ""
  partition       = ""

  auth_method      = "pannier" # default: none, tokens are minted
  audience         = "consul.io"
  check_addresses = ["172.17.0.0/16"] # what checks of services may be about besides this host; default: nothing
  identity_timeout = "5m"

  # The plugins that reach it. Default: sids, consul-services and envoy-bootstrap, or the only ones of their kinds.
  identity_plugin     = "sids"
  registration_plugin = "consul-services"
  bootstrap_plugin    = "envoy-bootstrap"
}

# An issuer of identities that is no Consul: a plugin of the kind identity.
identity "spiffe" {
  plugin   = "spiffe-issuer" # default: sids, or the only one of the kind
  audience = "spiffe"        # default: the block's name
  timeout  = "5m"
}

gc {
  interval           = "5m"
  claim_threshold    = "5m"
  driver_threshold   = "24h"
  workload_threshold = "24h"
  node_threshold     = "24h"
}

# Without ACLs everyone who may use the socket may do everything.
acl {
  enabled     = false
  socket_root = true # root on the socket needs no token; never in a cluster
}

# Who called what. There is no such file by default.
audit {
  path = "/var/log/pannier/audit.log"
}

# Exports traces of calls to an OTLP/HTTP collector. They are off by default.
traces {
  endpoint = "http://127.0.0.1:4318"
}

# Leaves out the metrics of single volumes, on hosts with very many. Each volume has some by default.
metrics {
  volumes = false
}

# Encrypts this host's copy of the ledger: head -c 32 /dev/urandom | base64
ledger_encryption {
  key_file = "/etc/pannier/ledger.key" # default: in clear
}
