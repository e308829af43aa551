workload "note" {
  volume "notes" {
    source      = "notes"
    destination = "/data"
  }

  exec {
    command = "/bin/cat"
    args    = ["/data/hello"]
  }
}
