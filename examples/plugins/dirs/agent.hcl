# The endpoint of this plugin's driver is a directory.
csi_driver "shared" {
  endpoint = "unix:///srv/dirs"
}

plugin "dirs" {
  config {
    mode = "0770" # of the volumes' folders; default 0755
  }
}
