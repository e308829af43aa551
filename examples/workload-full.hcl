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
      fs_type            = "ext4"
      mount_flags        = ["noatime"]
      volume_mount_group = "1000" # for drivers that take one
    }
  }

  volume "scratch" {
    source          = "raw"
    access_mode     = "single-node-writer"
    attachment_mode = "block-device"
    destination     = "/dev/scratch"
  }

  volume "cache" {
    driver      = "local" # makes the volume for this workload, and deletes it
    destination = "/var/cache/report"
    attributes {
      size = "1GiB"
    }
  }

  user   = "nobody" # of the secrets; default: that of exec
  canary = false

  units = ["report.service"] # systemd services that may load the secrets

  shutdown_delay = "5s" # between the end of the registrations and that of the program

  after    = ["load-1", "staging/load-2"]
  replaces = ["report-1"]

  network {
    mode = "host"
    port "http" {
      static = 8080
    }
    port "grpc" {} # any free one
    port "metrics" {}
  }

  service "report" {
    provider            = "consul"
    consul              = "default" # or cluster, as Nomad calls it
    port                = "http"    # or a number
    address             = "192.0.2.7"
    address_mode        = "auto"
    tags                = ["v2", "node-${node.name}"]
    canary_tags         = ["canary"]
    enable_tag_override = false
    intentions          = ["dashboard"] # who may call it; the node's token needs intentions = "write"
    on_update           = "require_healthy" # Nomad's; without effect
    meta {
      workload = "${workload.namespace}/${workload.id}"
    }
    canary_meta {
      workload = "canary"
    }
    tagged_addresses {
      lan = "192.0.2.7"
    }
    weights {
      passing = 10
      warning = 1
    }

    check {
      name            = "alive"
      type            = "http"
      address         = "127.0.0.1"
      address_mode    = "host"
      port            = "http"
      path            = "/health"
      protocol        = "https"
      method          = "GET"
      body            = ""
      interval        = "10s"
      timeout         = "2s"
      initial_status  = "critical"
      tls_skip_verify = true
      tls_server_name = "report.example"
      expose          = false
      notes           = "The runbook is at https://wiki.example/report"
      on_update       = "require_healthy" # Nomad's; without effect
      header {
        Accept = ["application/json"]
      }
      success_before_passing   = 1
      failures_before_warning  = 1
      failures_before_critical = 3
    }
    check {
      type         = "grpc"
      port         = "grpc"
      interval     = "10s"
      grpc_service = "report.v1"
      grpc_use_tls = false
    }
    check {
      type     = "tcp"
      interval = "10s"
    }
    check {
      type     = "process"
      interval = "10s"
    }

    connect {
      native = false
      admin  = "unix" # where Envoy's admin API listens; or tcp, none
      sidecar_service {
        port                      = "21000" # default: Consul picks one
        tags                      = ["proxy"]
        disable_default_tcp_check = false
        meta {
          of = "report"
        }
        proxy {
          local_service_address = "127.0.0.1"
          local_service_port    = 8080
          mesh_gateway {
            mode = "local"
          }
          upstreams {
            destination_name      = "db"
            destination_type      = "service"
            destination_namespace = ""
            destination_partition = ""
            destination_peer      = ""
            datacenter            = "dc2"
            local_bind_address    = "127.0.0.1"
            local_bind_port       = 5432
            mesh_gateway {
              mode = "remote"
            }
            config {
              connect_timeout_ms = 1000
            }
          }
          upstreams {
            destination_name       = "queue"
            local_bind_socket_path = "/run/queue.sock"
            local_bind_socket_mode = "0600"
          }
          expose {
            checks = false
            path {
              path            = "/metrics"
              protocol        = "http"
              local_path_port = 9090
              listener_port   = "metrics"
            }
          }
          config {
            envoy_stats_tags = ["node=${node.name}"]
          }
        }
      }
    }
  }

  service {
    name = "report-in" # the name may stand here too
    connect {
      gateway {
        proxy {
          connect_timeout                     = "5s"
          envoy_gateway_bind_tagged_addresses = false
          envoy_gateway_no_default_bind       = true
          envoy_dns_discovery_type            = "LOGICAL_DNS"
          envoy_gateway_bind_addresses "all" {
            address = "0.0.0.0"
            port    = 8443
          }
          config {
            envoy_dogstatsd_url = "udp://$${HOST_IP}:8125" # a literal ${HOST_IP}
          }
        }
        ingress {
          tls {
            enabled         = true
            tls_min_version = "TLSv1_2"
            tls_max_version = "TLSv1_3"
            cipher_suites   = ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]
            sds { # a cluster of the bootstrap that serves certificates
              cluster_name  = "certificates"
              cert_resource = "report-in"
            }
          }
          listener {
            port     = 8443
            protocol = "http"
            service {
              name  = "report"
              hosts = ["report.example"]
              tls {
                sds {
                  cluster_name  = "certificates"
                  cert_resource = "report"
                }
              }
              request_headers {
                add {
                  x-gateway = "report-in"
                }
                set {
                  x-forwarded-proto = "https"
                }
                remove = ["x-debug"]
              }
              response_headers {
                remove = ["server"]
              }
              max_connections         = 1000
              max_pending_requests    = 1000
              max_concurrent_requests = 1000
            }
          }
        }
      }
    }
  }

  service "report-out" {
    port = 8444
    connect {
      gateway {
        terminating {
          service {
            name      = "archive"
            ca_file   = "/etc/ssl/archive-ca.pem"
            cert_file = "/etc/ssl/archive.pem"
            key_file  = "/etc/ssl/archive-key.pem"
            sni       = "archive.example"
          }
        }
      }
    }
  }

  service "report-between" {
    port = 8445
    kind = "mesh-gateway" # Nomad's; gateway says it too
    connect {
      gateway {
        mesh {}
      }
    }
  }

  service "report-front" { # its listeners and routes are config entries in Consul
    connect {
      gateway {
        api {}
      }
    }
  }

  device "nvidia/gpu" { # or its type alone, or VENDOR/TYPE/NAME
    count = 2 # default: 1
  }

  identity "report-id" { # from an identity block of the agent: no Consul takes part
    issuer = "spiffe"
  }

  exec {
    command = "/usr/bin/report"
    args    = ["-from", "/srv/mysql", "-listen", ":${port.http}"]
    user    = "nobody:nogroup"
    env {
      TZ = "UTC"
    }
    kill_signal  = "SIGINT"
    kill_timeout = "30s"
  }

  sidecar {
    service = "report"
    command = ["envoy", "-c", "${bootstrap}", "--concurrency", "1", "--base-id", "${base_id}", "--restart-epoch", "${restart_epoch}"]
    user    = "envoy" # default: the workload's
    env {
      SECRETS = "${secrets_dir}"
    }
  }
}
