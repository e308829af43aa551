# The agent's configuration, every key with its default unless it says otherwise.
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
}

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
  user = "" # default: the agent's
  config {}
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

# A driver that someone else runs, here in a container.
csi_driver "hostpath" {
  type                   = "monolith" # node, controller, monolith
  endpoint               = "unix:///run/csi/hostpath.sock"
  mount_dir              = "/csi"
  stage_publish_base_dir = "/local/csi"
  health_timeout         = "30s"
}

gc {
  interval           = "5m"
  claim_threshold    = "5m"
  driver_threshold   = "24h"
  workload_threshold = "24h"
}
