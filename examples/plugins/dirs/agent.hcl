# The plugin brings its driver: dirs, with its volumes in that folder.
plugin "dirs" {
  config {
    root = "/srv/dirs"
    mode = "0770" # of the volumes' folders; default 0755
  }
}
