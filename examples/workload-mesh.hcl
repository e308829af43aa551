# A service in Consul's mesh, with an Envoy that Pannier runs beside it.
# The agent needs a consul block, and with ACLs the caller a policy with services = ["web"] for the namespace.
# pannier workload run examples/workload-mesh.hcl

workload "web" {
  network {
    port "http" {}
  }

  service "web" {
    port = "http"
    tags = ["v1", "node-${node.name}"]

    check {
      name     = "alive"
      type     = "http"
      path     = "/"
      interval = "10s"
      timeout  = "2s"
    }

    connect {
      sidecar_service {
        proxy {
          upstreams {
            destination_name = "db"
            local_bind_port  = 5432
          }
          config {
            protocol                   = "http"
            envoy_prometheus_bind_addr = "127.0.0.1:9102"
          }
        }
      }
    }
  }

  exec {
    command = "python3"
    args    = ["-m", "http.server", "--bind", "127.0.0.1", "${port.http}"]
  }

  sidecar {
    command = ["envoy", "-c", "${bootstrap}", "--concurrency", "1", "--base-id", "${base_id}", "--restart-epoch", "${restart_epoch}"]
  }
}
