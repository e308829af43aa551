# The group of a Nomad job, in a workload block.
workload "dashboard" {
  network {
    mode = "host"

    port "http" {
      static = "9002"
    }
  }

  service {
    name     = "count-dashboard"
    provider = "consul"
    port     = "http"
    tags     = ["dashboard", "node-${node.name}"]

    meta {
      version = "1.4"
      shard   = 3
      public  = true
    }

    check {
      name     = "alive"
      type     = "http"
      path     = "/health"
      interval = "10s"
      timeout  = "2s"
      notes    = "restart the cache first"

      on_update = "ignore_warnings"

      header {
        Accept          = ["application/json"]
        X-Forwarded-For = ["192.0.2.1", "192.0.2.2"]
      }
    }

    check {
      type         = "tcp"
      address_mode = "host"
      port         = 9002
      interval     = "15s"
      timeout      = "1s"
    }

    connect {
      sidecar_service {
        proxy {
          upstreams {
            destination_name = "count-api"
            local_bind_port  = 8080
          }
          upstreams {
            destination_name = "geo"
            datacenter       = "dc2"
            local_bind_port  = 8081

            mesh_gateway {
              mode = "local"
            }
          }
          config {
            protocol              = "http"
            connect_timeout_ms    = 2500
            envoy_statsd_url      = "udp://$${HOST_IP}:8125"
            envoy_stats_tags      = ["node=${node.name}", "dc=${node.datacenter}"]
            envoy_tracing_json    = <<EOT
{
  "http": {"name": "${workload.id}"}
}
EOT
          }
        }
      }
    }
  }
}
