# Every key of a volume spec. A driver takes those that it knows.

id          = "mysql"
name        = "MySQL's data"
type        = "csi"
namespace   = "default"
plugin_id   = "hostpath"
external_id = "vol-0abc" # to register; create fills it

capacity_min = "10GiB"
capacity_max = "20GiB"

clone_id    = ""
snapshot_id = "" # at most one of the two

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
capability {
  access_mode     = "single-node-reader-only"
  attachment_mode = "file-system"
}

mount_options {
  fs_type            = "ext4"
  mount_flags        = ["noatime"]
  volume_mount_group = "1000"
}

topology_request {
  required {
    topology {
      segments {
        rack = "R1"
      }
    }
  }
  preferred {
    topology {
      segments {
        rack = "R2"
      }
    }
  }
}

secrets {
  username = "admin"
}

# Read on the machine that makes the call; never stored in plain text, never shown.
# secrets_from {
#   password = "file:///etc/pannier/mysql.pw"
# }

parameters {
  skuname = "Premium"
}

context {
  endpoint = "http://192.0.2.1:9425"
}
