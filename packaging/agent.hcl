# The agent's configuration. docs/configuration.md has every key; pannier agent -check -config /etc/pannier checks it,
# and systemctl reload pannier takes a change over.

# name = "host-1" # default: the host's name

# The group that may use the API besides root. Its members may do nearly all that root may.
# socket_group = "pannier"

# Volumes on this host's disk. Other CSI drivers have blocks of their own, or are registered with
# pannier driver register.
csi_driver "local" {
  command = [
    "/usr/lib/pannier/csi-local",
    "-endpoint", "${endpoint}",
    "-node-id", "${node.name}",
    "-data-dir", "${data_dir}/volumes",
  ]
}

# docker run --volume-driver pannier, docker volume create --driver pannier. Without the block Docker has no such driver.
plugin "docker-volume" {
  config {
    driver = "local" # of volumes that are created without one
  }
  listen "docker" {
    address = "unix:///run/docker/plugins/pannier.sock"
  }
  api {
    policy = "docker-volume" # counts where ACLs are on; hosts that are no servers need token_file instead
  }
}

# Pages in a browser, at http://127.0.0.1:7480: docs/web.md.
# plugin "web" {
#   user = "nobody"
#   listen "http" {
#     address = "127.0.0.1:7480"
#   }
#   api {
#     policy = "web" # counts where ACLs are on
#   }
# }

# nomad volume ..., and Terraform's nomad_csi_volume, with NOMAD_ADDR=unix:///run/pannier/nomad.sock.
# plugin "nomad-api" {
#   listen "nomad" {
#     address = "unix:///run/pannier/nomad.sock"
#   }
#   api {
#     policy = "nomad-api" # counts where ACLs are on
#   }
# }
