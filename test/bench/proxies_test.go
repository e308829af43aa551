package bench

import (
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hashicorp/consul/api"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/envoy"
	"github.com/pannier/pannier/test/lib/testhost"
)

// measureProxies runs two services with an Envoy each, and measures how long it is from pannier workload run to the
// first answer through both. Then it stops one of two instances again and again, under requests.
func measureProxies(b *testing.B, r *table.Section) {
	const rounds, stops = 200, 10
	program := envoy.Program(b, "the first request through two proxies")
	c := consul.Start(b, consul.Options{ACL: true, TLS: true})
	c.Policy(b, "node", nodePolicy)
	c.Policy(b, "sids", `acl = "write"`)
	h := newHostWith(b, consul.Config(c.Service("", c.TokenFile(b, c.Token(b, "node"))))+
		fmt.Sprintf("plugin \"sids\" {\n  config {\n    token_file = %q\n  }\n}\n", c.TokenFile(b, c.Token(b, "sids"))),
		"sids", "consul-services", "envoy-bootstrap")
	h.Start()
	_, _, err := c.Client(c.Management).ConfigEntries().Set(&api.ServiceIntentionsConfigEntry{
		Kind: api.ServiceIntentions, Name: "web",
		Sources: []*api.SourceIntention{{Name: "*", Action: api.IntentionActionAllow}},
	}, nil)
	check.NoError(b, err)
	p := &proxies{b: b, host: h, program: program, upstream: testhost.FreeAddress(b, "127.0.0.1"), delay: "0s"}

	var first table.Samples
	for range measure.Turns(rounds, 5*time.Minute) {
		began := time.Now()
		running := []*exec.Cmd{p.server("web-1"), p.client()}
		p.await("web-1")
		first = append(first, time.Since(began))
		p.end(running...)
	}
	p.delay = "3s"
	instances := map[string]*exec.Cmd{"web-1": p.server("web-1"), "web-2": p.server("web-2"), "client": p.client()}
	p.await("web-1")
	p.await("web-2")
	load := envoy.StartLoad("tcp", p.upstream, 100)
	for n := range stops {
		id := fmt.Sprint("web-", 1+n%2)
		p.end(instances[id])
		before := load.Answers()[id]
		instances[id] = p.server(id)
		for load.Answers()[id] == before {
			time.Sleep(time.Millisecond)
		}
	}
	load.End()
	p.end(slices.Collect(maps.Values(instances))...)
	answered, failed := load.Answers()["web-1"]+load.Answers()["web-2"], len(load.Failed())
	r.Add(
		first.Row("workload run of two services → first answer through both proxies, p50", 0.5),
		first.Row("the same, p99", 0.99).Most(1500),
		table.Row{
			What: fmt.Sprintf("answered of %d requests, while one of two instances was stopped and started %d times",
				answered+failed, stops),
			Value: 100 * float64(answered) / float64(answered+failed), Unit: "%",
		}.Least(100),
	)
}

// proxies runs workloads with an Envoy each.
type proxies struct {
	b                        *testing.B
	host                     *testhost.Host
	program, upstream, delay string
}

func (p *proxies) run(id, body string) *exec.Cmd {
	p.b.Helper()
	cmd := p.host.Command("workload", "run", p.host.Write(id+".hcl", fmt.Sprintf(`workload %q {
  shutdown_delay = %q
  network {
    port "app" {}
  }
%s
  sidecar {
    command = [%q, "-c", "${bootstrap}", "--disable-hot-restart", "--concurrency", "1", "--log-level", "off"]
  }
}
`, id, p.delay, body, p.program)))
	check.NoError(p.b, cmd.Start())
	p.b.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

// server is an instance of a service that answers with its name.
func (p *proxies) server(id string) *exec.Cmd {
	p.b.Helper()
	return p.run(id, fmt.Sprintf(`
  service "web" {
    port = "app"
    check {
      type     = "tcp"
      interval = "1s"
      timeout  = "1s"
    }
    connect {
      sidecar_service {
        proxy {
          config {
            protocol = "http"
          }
        }
      }
    }
  }
  exec {
    command = %q
    args    = ["--config-yaml", %q, "--disable-hot-restart", "--concurrency", "1", "--log-level", "off"]
  }`, p.program, fmt.Sprintf(`{"static_resources": {"listeners": [%s]}}`, envoy.Static("127.0.0.1:${port.app}", id))))
}

func (p *proxies) client() *exec.Cmd {
	p.b.Helper()
	_, port, _ := strings.Cut(p.upstream, ":")
	return p.run("client", fmt.Sprintf(`
  service "client" {
    port = "app"
    connect {
      sidecar_service {
        proxy {
          upstreams {
            destination_name = "web"
            local_bind_port  = %s
          }
        }
      }
    }
  }
  exec {
    command = "sleep"
    args    = ["infinity"]
  }`, port))
}

// await waits for an answer of an instance.
func (p *proxies) await(id string) {
	p.b.Helper()
	load := envoy.StartLoad("tcp", p.upstream, 100)
	defer load.End()
	check.Eventually(p.b, "an answer of "+id, func() bool { return load.Answers()[id] > 0 })
}

// end stops workloads as systemd does.
func (p *proxies) end(all ...*exec.Cmd) {
	p.b.Helper()
	for _, cmd := range all {
		check.NoError(p.b, cmd.Process.Signal(unix.SIGTERM))
	}
	for _, cmd := range all {
		_ = cmd.Wait() // with the program's exit code
	}
}
