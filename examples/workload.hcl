# pannier workload run examples/workload.hcl

workload "redis" {
  volume "data" {
    source      = "data"
    destination = "/data"
  }

  exec {
    command = "/bin/sh"
    args    = ["-c", "date >> /data/starts; cat /data/starts"]
    env {
      LC_ALL = "C"
    }
  }
}
