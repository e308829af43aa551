# A workload: what a program needs while it runs. Every field: docs/workload-spec.md
workload "app" {
  # Volumes that it uses. Each must be registered (pannier volume status lists them).
  volume "data" {
    source      = "data"  # the volume's id, in the workload's namespace
    destination = "/data" # where the program sees it
    # read_only       = true
    # access_mode     = "single-node-writer" # needed if the volume has several capabilities
    # attachment_mode = "file-system"
  }

  # The program that pannier workload run starts. It can also be given there, after --.
  # Units and containers use pannier workload start instead.
  exec {
    command = "/bin/sh"
    args    = ["-c", "df /data"]
    # user  = "nobody"
    # env   = { MODE = "production" }
  }

  # after    = ["migration"] # wait until nothing is left of this workload
  # replaces = ["app-old"]   # stop this one first

  # A service in Consul (docs/consul.md); the agent needs a consul block.
  # network {
  #   port "http" {}
  # }
  # service {
  #   name = "app"
  #   port = "http"
  # }
}
