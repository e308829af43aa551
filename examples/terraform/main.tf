# Volumes of Pannier with the Nomad provider, by the plugin nomad-api (docs/nomad.md). The tests of this repository run
# this file where terraform or tofu and the provider are in PATH.
#
#	export NOMAD_TOKEN=... # the secret of a Pannier token, where ACLs are on
#	tofu init && tofu apply

terraform {
  required_providers {
    nomad = {
      source  = "hashicorp/nomad"
      version = "~> 2.0"
    }
  }
}

provider "nomad" {
  address = "unix:///run/pannier/nomad.sock"
}

# Wait until the CSI driver is there.
data "nomad_plugin" "hostpath" {
  plugin_id        = "hostpath"
  wait_for_healthy = true
}

resource "nomad_csi_volume" "data" {
  depends_on = [data.nomad_plugin.hostpath]

  volume_id    = "data"
  name         = "data"
  namespace    = "shop"
  plugin_id    = "hostpath"
  capacity_min = "10GiB"
  capacity_max = "20GiB"

  capability {
    access_mode     = "single-node-writer"
    attachment_mode = "file-system"
  }

  mount_options {
    fs_type     = "ext4"
    mount_flags = ["noatime"]
  }

  lifecycle {
    prevent_destroy = true # it would delete the data
  }
}

# A volume that exists at the driver.
resource "nomad_csi_volume_registration" "archive" {
  depends_on = [data.nomad_plugin.hostpath]

  volume_id   = "archive"
  name        = "archive"
  namespace   = "shop"
  plugin_id   = "hostpath"
  external_id = "vol-0123456789"

  capability {
    access_mode     = "multi-node-reader-only"
    attachment_mode = "file-system"
  }
}
