id        = "notes"
type      = "csi"
plugin_id = "dirs"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
