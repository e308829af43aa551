# Every key of a workload spec.

workload "report" {
  namespace = "default"

  volume "data" {
    source          = "mysql"
    read_only       = true
    access_mode     = "single-node-reader-only"
    attachment_mode = "file-system"
    destination     = "/srv/mysql"
    mount_options {
      fs_type     = "ext4"
      mount_flags = ["noatime"]
    }
  }

  volume "scratch" {
    source          = "raw"
    access_mode     = "single-node-writer"
    attachment_mode = "block-device"
    destination     = "/dev/scratch"
  }

  exec {
    command = "/usr/bin/report"
    args    = ["-from", "/srv/mysql"]
    user    = "nobody:nogroup"
    env {
      TZ = "UTC"
    }
  }
}
