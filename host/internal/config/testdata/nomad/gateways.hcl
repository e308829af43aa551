workload "edge" {
  network {
    port "mesh" {}
  }

  service {
    name = "ingress"
    port = "8088"

    connect {
      gateway {
        proxy {
          connect_timeout = "500ms"

          envoy_gateway_no_default_bind = true
          envoy_dns_discovery_type      = "STRICT_DNS"
          envoy_gateway_bind_addresses "lan" {
            address = "0.0.0.0"
            port    = 8088
          }
          config {
            envoy_prometheus_bind_addr = "127.0.0.1:9102"
          }
        }
        ingress {
          tls {
            enabled         = true
            tls_min_version = "TLSv1_2"
            tls_max_version = "TLSv1_3"
            cipher_suites   = ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]
            sds {
              cluster_name  = "sds-cluster"
              cert_resource = "ingress"
            }
          }
          listener {
            port     = 8088
            protocol = "tcp"
            service {
              name = "uuid-api"
            }
          }
          listener {
            port     = 8089
            protocol = "http"
            service {
              name  = "web"
              hosts = ["web.example", "www.example"]
              tls {
                sds {
                  cluster_name  = "sds-cluster"
                  cert_resource = "web"
                }
              }
              request_headers {
                add {
                  x-gateway = "edge"
                }
                set    = { x-hop = 1 }
                remove = ["x-debug"]
              }
              response_headers {
                remove = ["server"]
              }
              max_connections         = 100
              max_pending_requests    = 200
              max_concurrent_requests = 300
            }
            service {
              name = "*"
            }
          }
        }
      }
    }
  }

  service {
    name = "egress"
    kind = "terminating-gateway"
    connect {
      gateway {
        terminating {
          service {
            name      = "legacy"
            ca_file   = "/etc/ssl/ca.pem"
            cert_file = "/etc/ssl/cert.pem"
            key_file  = "/etc/ssl/key.pem"
            sni       = "legacy.example"
          }
        }
      }
    }
  }

  service {
    name = "between"
    port = "mesh"
    connect {
      gateway {
        proxy {
          envoy_gateway_bind_tagged_addresses = true
        }
        mesh {}
      }
    }
  }

  service {
    name      = "front"
    kind      = "api-gateway"
    on_update = "ignore"
    connect {
      gateway {
        api {}
      }
    }
  }
}
