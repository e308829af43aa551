# A driver of this plugin is a folder: its endpoint.
csi_driver "shared" {
  endpoint = "unix:///srv/dirs"
}

plugin "dirs" {
  config {
    mode = "0770" # of the volumes' folders; default 0755
  }
}
