# A volume for Pannier. Make it with:      pannier volume create FILE
# Register one that exists already with:   pannier volume register FILE

# Unique in its namespace: letters, digits and - _ . , 128 characters at most.
id   = "data"
type = "csi"

# The CSI driver's id; pannier driver status lists them.
plugin_id = "local"

# namespace = "default"
# name      = "shown to people; the id by default"

# The volume's id at the driver. Needed to register; create fills it in.
# external_id = "vol-0abc"

# A number of bytes, or a size. The driver chooses between the two.
capacity_min = "1GiB"
capacity_max = "1GiB"

# Start from another volume or from a snapshot, by its external id; one of the two.
# clone_id    = ""
# snapshot_id = ""

# How the volume may be used; one block or more.
#   access_mode:     single-node-reader-only, single-node-writer, single-node-single-writer,
#                    single-node-multi-writer, multi-node-reader-only,
#                    multi-node-single-writer, multi-node-multi-writer
#   attachment_mode: file-system, block-device
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

mount_options {
  fs_type     = "ext4"
  mount_flags = ["noatime"]
}

# topology_request {
#   required {
#     topology {
#       segments {
#         rack = "R1"
#       }
#     }
#   }
# }

# For the driver. Secrets are never shown; better still, keep them in files.
# secrets {
#   username = "admin"
# }
# secrets_from {
#   password = "file:///etc/pannier/data.pw"
# }

# Opaque to Pannier: what the driver wants at creation (parameters) and at each
# use of a registered volume (context).
# parameters {
#   kind = "fast"
# }
# context {
#   endpoint = "http://192.0.2.1:9425"
# }
