# pannier workload run examples/workload.hcl

workload "redis" {
  volume "data" {
    source      = "data"
    destination = "/srv/data"
  }

  exec {
    command = "/bin/sh"
    args    = ["-c", "date >> /srv/data/starts; cat /srv/data/starts"]
    env {
      LC_ALL = "C"
    }
  }
}
