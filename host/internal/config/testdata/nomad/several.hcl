workload "several" {
  namespace = "prod"
  user      = "app"
  canary    = true

  network {
    port "http" {}
    port "grpc" {}
    port "expose" {}
  }

  # The name as a label, and objects in the place of blocks.
  service "api" {
    port                = "http"
    address             = "${node.name}.example"
    cluster             = "east"
    tags                = ["live"]
    canary_tags         = ["canary", "p${port.http}"]
    enable_tag_override = true
    meta                = { a = "1" }
    canary_meta         = { a = "2" }
    tagged_addresses = {
      lan = "192.0.2.1"
      wan = "198.51.100.1"
    }
    weights {
      warning = 2
    }
    check {
      type            = "grpc"
      port            = "grpc"
      interval        = "10s"
      grpc_service    = "health"
      grpc_use_tls    = true
      tls_skip_verify = true
      tls_server_name = "api.example"
      initial_status  = "passing"
    }
    check {
      type                     = "http"
      protocol                 = "https"
      method                   = "POST"
      path                     = "/check?workload=${workload.namespace}/${workload.id}"
      body                     = "{\"ask\": \"all\"}"
      interval                 = "1m"
      address                  = "127.0.0.1"
      expose                   = true
      success_before_passing   = 2
      failures_before_warning  = 1
      failures_before_critical = 3
    }
    check {
      name     = "process"
      type     = "process"
      interval = "5s"
    }
    connect {
      native = false
      sidecar_service {
        port                      = 21000
        tags                      = ["proxy"]
        meta                      = { of = "api" }
        disable_default_tcp_check = true
        proxy {
          local_service_address = "127.0.0.1"
          local_service_port    = 8080
          mesh_gateway {
            mode = "none"
          }
          upstreams {
            destination_name       = "db"
            destination_type       = "prepared_query"
            destination_namespace  = "data"
            destination_partition  = "east"
            local_bind_socket_path = "/run/db.sock"
            local_bind_socket_mode = "0600"
            config                 = { limits = { max_connections = 4 } }
          }
          upstreams {
            destination_name   = "geo"
            destination_peer   = "peer"
            local_bind_address = "127.0.0.2"
            local_bind_port    = 9000
          }
          expose {
            checks = true
            path {
              path            = "/metrics"
              protocol        = "http2"
              local_path_port = 9090
              listener_port   = "expose"
            }
          }
          config = {
            local_connect_timeout_ms = 1.5
            deep                     = [{ yes = true, no = null }]
          }
        }
      }
    }
  }

  service "native" {
    consul = "west"
    port   = 8300
    connect {
      native = true
    }
  }

  exec {
    command = "/usr/bin/api"
    args    = ["-port", "${port.http}", "-literal", "$${x}"]
    env {
      TOKEN_FILE = "${token_file}"
    }
  }

  sidecar {
    service = "api"
    user    = "envoy"
    command = ["envoy", "-c", "${bootstrap}", "--base-id", "${port.grpc}"]
    env {
      SECRETS = "${secrets_dir}"
      N       = 1
    }
  }
}
