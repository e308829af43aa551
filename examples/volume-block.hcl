# A raw block device. pannier volume create examples/volume-block.hcl

id        = "raw"
type      = "csi"
plugin_id = "local"

capacity_min = "64MiB"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "block-device"
}
