package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/docpages"
	"github.com/pannier/pannier/test/lib/envoy"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testnet"
)

// lab is a mesh of hosts with networks of their own, a Consul agent, a Pannier agent and Envoys each.
type lab struct {
	t     *testing.T
	net   *testnet.TestNet
	envoy string // the program
	runs  []*labRun
}

// labRun is a running `pannier workload run` of a workload that is a sidecar or a gateway alone.
type labRun struct {
	*exec.Cmd
	id  string
	out *check.Buffer
}

// host adds a host to a Consul whose agent there is s.
func (l *lab) host(c *consul.Cluster, at *testnet.Host, s *consul.Server, node, sids string) *mesh {
	l.t.Helper()
	m := &mesh{consul: c, reach: c.ServiceOf(s, "", c.TokenFile(l.t, node)), t: l.t}
	m.Host = testhost.NewNamed(l.t, at.Name, fmt.Sprintf("%s\nplugin \"sids\" {\n  config {\n    token_file = %q\n  }\n}\n",
		consul.Config(m.reach), c.TokenFile(l.t, sids)), "sids", "consul-services", "envoy-bootstrap")
	m.Net = at
	m.Start()
	return m
}

// tokens makes the policies of the docs and returns a token of each.
func tokens(t *testing.T, c *consul.Cluster) (node, sids string) {
	t.Helper()
	c.Policy(t, "node", nodePolicy)
	c.Policy(t, "sids", sidsPolicy)
	return c.Token(t, "node"), c.Token(t, "sids")
}

// spec writes a workload that is a proxy alone.
func (l *lab) spec(m *mesh, id, service string) string {
	return m.Write(id+".hcl", fmt.Sprintf(`workload %[1]q {
  service %[1]q {
%[2]s
  }
  sidecar {
    command = [%[3]q, "-c", "${bootstrap}", "--concurrency", "1", "--base-id", "${base_id}", "--restart-epoch", "${restart_epoch}", "--parent-shutdown-time-s", "60", "--drain-time-s", "1", "--log-level", "error"]
  }
}
`, id, service, l.envoy))
}

// sidecar is the body of a service with a proxy.
func sidecar(port int, more, proxy string) string {
	return fmt.Sprintf("    port = %d\n%s    connect {\n      sidecar_service {\n        proxy {\n%s\n        }\n      }\n    }",
		port, more, proxy)
}

// run runs a workload until the test ends.
func (l *lab) run(m *mesh, id, service string) {
	l.t.Helper()
	l.runSpec(m, id, l.spec(m, id, service))
}

func (l *lab) runSpec(m *mesh, id, spec string) {
	l.t.Helper()
	cmd, out := m.Command("workload", "run", spec), &check.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	check.NoError(l.t, m.Net.Do(cmd.Start))
	l.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		if l.t.Failed() {
			l.t.Logf("%s:\n%s", id, out)
		}
	})
	l.runs = append(l.runs, &labRun{cmd, id, out})
}

// serve answers HTTP on all addresses of a host.
func (l *lab) serve(at *testnet.Host, port int, answer string) {
	l.t.Helper()
	var listener net.Listener
	check.NoError(l.t, at.Do(func() (err error) {
		listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", port))
		return err
	}))
	answers := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }
	server := &http.Server{Handler: http.HandlerFunc(answers)}
	go func() { _ = server.Serve(listener) }()
	l.t.Cleanup(func() { _ = server.Close() })
}

// request asks as a program of a host does, HOST:PORT or the path of a socket.
func request(at *testnet.Host, address, host, path string) (answer string, err error) {
	client := &http.Client{Timeout: testhost.Wait, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if strings.HasPrefix(address, "/") {
				return at.Dial(ctx, "unix", address)
			}
			return at.Dial(ctx, "tcp", address)
		},
	}}
	resp, err := client.Get("http://" + host + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return fmt.Sprintf("%d %s", resp.StatusCode, text), err
}

// entry writes an entry of Consul's configuration.
func (l *lab) entry(c *consul.Cluster, e api.ConfigEntry) {
	l.t.Helper()
	_, _, err := c.Client(c.Management).ConfigEntries().Set(e, nil)
	check.NoError(l.t, err)
}

// Ports of the lab. Each host has a network of its own.
const (
	webPort, shopPort, dbPort, farPort, archivePort = 9000, 9001, 9002, 9003, 9004

	toShop, toArchive, toFar, later = 7001, 7002, 7003, 7004

	exposedPort, metricsPort, shopSidecarPort = 7101, 7102, 7103
)

// Requests pass through real Envoys of two hosts and through each kind of gateway, and only when intentions allow it.
// Every workload is a proxy alone: what it stands for is a server of this test.
func TestMeshData(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, net: testnet.New(t, 1), envoy: envoy.Program(t, "requests through the mesh")}
	at := map[string]*testnet.Host{}
	for _, name := range []string{"a", "b", "c"} {
		at[name] = l.net.Host(name)
	}
	here := consul.Start(t, consul.Options{ACL: true, TLS: true, Host: at["a"]})
	there := consul.Start(t, consul.Options{ACL: true, TLS: true, Host: at["c"]}) // a peer
	agentOfB := here.Join(at["b"])
	node, sids := tokens(t, here)
	a, b := l.host(here, at["a"], here.Servers[0], node, sids), l.host(here, at["b"], agentOfB, node, sids)
	node, sids = tokens(t, there)
	c := l.host(there, at["c"], there.Servers[0], node, sids)

	for _, name := range []string{"shop", "archive", "far"} {
		l.entry(here, &api.ServiceConfigEntry{Kind: api.ServiceDefaults, Name: name, Protocol: "http"})
	}
	for name, source := range map[string]*api.SourceIntention{"archive": {Name: "web"}, "far": {Name: "web", Peer: "there"}} {
		source.Action = api.IntentionActionAllow
		l.entry(here, &api.ServiceIntentionsConfigEntry{
			Kind: api.ServiceIntentions, Name: name, Sources: []*api.SourceIntention{source},
		})
	}
	_, err := here.Client(here.Management).Catalog().Register(&api.CatalogRegistration{
		Node: "outside", Address: at["b"].Addr.String(), Service: &api.AgentService{Service: "archive", Port: archivePort},
	}, nil)
	check.NoError(t, err)
	l.peer(here, there)
	l.sh(here, a, docpages.Block(t, "consul.md", "run", "api-gateway"))

	for port, name := range map[int]string{shopPort: "shop", dbPort: "db", farPort: "far", archivePort: "archive"} {
		l.serve(at["b"], port, name)
	}
	web := func(toShop, version int) string {
		return sidecar(webPort, "", fmt.Sprintf(`
          upstreams {
            destination_name = "shop"
            local_bind_port  = %d
          }
          upstreams {
            destination_name       = "db"
            local_bind_socket_path = "${secrets_dir}/web/db.sock"
          }
          upstreams {
            destination_name = "archive"
            local_bind_port  = %d
          }
          config {
            envoy_prometheus_bind_addr  = "127.0.0.1:%d"
            envoy_admin_access_log_path = "%s/admin-%d.log"
          }
`, toShop, toArchive, metricsPort, a.Dir, version))
	}
	shop := func(intentions string) string {
		return strings.Replace(sidecar(shopPort, "    intentions = ["+intentions+"]\n", fmt.Sprintf(`
          expose {
            path {
              path            = "/health"
              protocol        = "http"
              local_path_port = %d
              listener_port   = %d
            }
          }`, shopPort, exposedPort)), "sidecar_service {", fmt.Sprintf("sidecar_service {\n        port = %d", shopSidecarPort), 1)
	}
	gateway := func(port, block string) string {
		return port + "\n    connect {\n      gateway {\n" + block + "\n      }\n    }"
	}
	l.run(a, "web", web(toShop, 0))
	l.run(b, "shop", shop(`"ingress"`))
	l.run(b, "db", sidecar(dbPort, "    intentions = [\"web\", \"ingress\", \"api\"]\n", ""))
	l.run(b, "far", sidecar(farPort, "", ""))
	l.runSpec(a, "api", a.Write("api.hcl", strings.Replace(docpages.Block(t, "consul.md", "file", "api.hcl"), "envoy", l.envoy, 1)))
	l.run(a, "ingress", gateway("", `
        ingress {
          listener {
            port     = 8080
            protocol = "http"
            service {
              name  = "shop"
              hosts = ["shop.example"]
            }
          }
          listener {
            port     = 8082
            protocol = "tcp"
            service {
              name = "db"
            }
          }
        }`))
	l.run(b, "terminating", gateway("", "        terminating {\n          service {\n            name = \"archive\"\n          }\n        }"))
	l.run(b, "mesh", gateway("    port = 8443", "        mesh {}"))
	l.run(c, "web", sidecar(webPort, "", fmt.Sprintf(`
          upstreams {
            destination_name = "far"
            destination_peer = "here"
            local_bind_port  = %d
          }`, toFar)))

	secrets := a.SecretsDir() + "/default/web/web/"
	const denied = "403 RBAC: access denied"
	expect := func(name string, m *mesh, address, host, path, want string) {
		t.Helper()
		m.Eventually(name, func() error {
			got, err := request(m.Net, address, host, path)
			if err != nil || !strings.HasPrefix(got, want) {
				return fmt.Errorf("%.200q, %w; want %q", got, err, want)
			}
			return nil
		})
	}
	toPort := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	expect("default deny", a, toPort(toShop), "shop", "/", denied)
	b.Run("workload", "update", l.spec(b, "shop", shop(`"ingress", "web"`)))
	for _, r := range []struct {
		name                string
		from                *mesh
		address, host, path string
		want                string
	}{
		{"an intention has opened it", a, toPort(toShop), "shop", "/", "200 shop"},
		{"tcp, by a socket", a, secrets + "db.sock", "db", "/", "200 db"},
		{"ingress http", c, at["a"].Addr.String() + ":8080", "shop.example", "/", "200 shop"},
		{"ingress http for another host", c, at["a"].Addr.String() + ":8080", "db.example", "/", "404 "},
		{"ingress tcp", c, at["a"].Addr.String() + ":8082", "db", "/", "200 db"},
		{"API gateway", c, at["a"].Addr.String() + ":8081", "db", "/", "200 db"},
		{"terminating gateway", a, toPort(toArchive), "archive", "/", "200 archive"},
		{"mesh gateway, from a peer", c, toPort(toFar), "far", "/", "200 far"},
		{"an exposed path", a, at["b"].Addr.String() + ":" + fmt.Sprint(exposedPort), "shop", "/health", "200 shop"},
		{"no other path", a, at["b"].Addr.String() + ":" + fmt.Sprint(exposedPort), "shop", "/", "404 "},
		{"metrics", a, toPort(metricsPort), "web", "/metrics", "200 # TYPE envoy_"},
		{"it is ready", a, secrets + "ready.sock", "web", "/ready", "200 LIVE"},
	} {
		expect(r.name, r.from, r.address, r.host, r.path, r.want)
	}

	// Only the mesh's own certificates open a connection to a sidecar.
	err = at["a"].Do(func() error {
		conn, err := tls.Dial("tcp", fmt.Sprintf("%s:%d", at["b"].Addr, shopSidecarPort), &tls.Config{InsecureSkipVerify: true})
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("a caller without a certificate: %v", err)
	}
	if dump, err := request(a.Net, secrets+"admin.sock", "web", "/config_dump"); err != nil ||
		strings.Contains(dump, a.secret(a.service("web"))) || !strings.Contains(dump, "[redacted]") {
		t.Errorf("the admin API shows the token: %v", err)
	}

	l.takeOver(a, toPort(toShop), func(n int) string { return web(toShop, n) })

	// Nothing is restarted by what reaches an Envoy from Consul.
	b.Run("workload", "update", l.spec(b, "shop", shop(`"ingress"`)))
	expect("the intention is gone", a, toPort(toShop), "shop", "/", denied)
	a.Run("workload", "update", l.spec(a, "web", web(later, 3)))
	expect("the upstream has moved", a, toPort(later), "shop", "/", denied)
	if epoch, err := envoy.Epoch(secrets + "admin.sock"); err != nil || epoch != 3 {
		t.Errorf("web's Envoy is of the epoch %d, %v", epoch, err)
	}
	l.cutOff(a, secrets)
	here.Pause(0)
	expect("a Consul that does not answer", a, secrets+"db.sock", "db", "/", "200 db")
	here.Resume(0)

	for _, r := range l.runs {
		check.NoError(t, r.Process.Signal(unix.SIGTERM))
	}
	for _, r := range l.runs {
		if err := r.Wait(); err != nil || strings.Contains(r.out.String(), "killed") {
			t.Errorf("%s ended with %v; output:\n%s", r.id, err, r.out)
		}
	}
	for _, m := range []*mesh{a, b, c} {
		m.NothingInUse()
	}
}

// takeOver replaces a caller's Envoy three times under 500 requests a second. None fails.
func (l *lab) takeOver(m *mesh, address string, version func(int) string) {
	l.t.Helper()
	load := envoy.StartLoadBy(m.Net.Dial, "tcp", address, 500)
	defer load.End()
	began := time.Now()
	for epoch := 1; epoch <= 3; epoch++ {
		m.Run("workload", "update", l.spec(m, "web", version(epoch)))
		m.Eventually("the next Envoy serves", func() error {
			got, err := envoy.Epoch(m.service("web").GetAdminSocket())
			if err == nil && got != epoch {
				err = fmt.Errorf("it is of epoch %d, want %d", got, epoch)
			}
			return err
		})
	}
	load.End()
	l.t.Logf("three takeovers in %s, answers %v", time.Since(began), load.Answers())
	if failed := load.Failed(); len(failed) > 0 || load.Answers()["shop"] == 0 {
		l.t.Errorf("%d requests failed, by %v; answers %v", len(failed), failed, load.Answers())
	}
}

// peer makes a service of one Consul one that the other's workloads may have as upstream.
func (l *lab) peer(here, there *consul.Cluster) {
	l.t.Helper()
	s := here.Servers[0]
	token, _, err := here.Client(here.Management).Peerings().GenerateToken(l.t.Context(), api.PeeringGenerateTokenRequest{
		PeerName: "there", ServerExternalAddresses: []string{s.Address(s.Ports.GRPCTLS)},
	}, nil)
	check.NoError(l.t, err)
	_, _, err = there.Client(there.Management).Peerings().Establish(l.t.Context(), api.PeeringEstablishRequest{
		PeerName: "here", PeeringToken: token.PeeringToken,
	}, nil)
	check.NoError(l.t, err)
	l.entry(here, &api.ExportedServicesConfigEntry{Name: "default", Services: []api.ExportedService{
		{Name: "far", Consumers: []api.ServiceConsumer{{Peer: "there"}}},
	}})
}

// sh runs commands of the docs on a host.
func (l *lab) sh(c *consul.Cluster, m *mesh, commands string) {
	l.t.Helper()
	shell := exec.CommandContext(l.t.Context(), "sh", "-euc", commands)
	var out check.Buffer
	shell.Stdout, shell.Stderr = &out, &out
	shell.Env = append(os.Environ(), "PATH="+filepath.Dir(consul.Binary(l.t))+":"+os.Getenv("PATH"),
		"CONSUL_HTTP_ADDR="+m.reach.Address, "CONSUL_CACERT="+m.reach.CAFile, "CONSUL_HTTP_TOKEN="+c.Management)
	if err := m.Net.Do(shell.Run); err != nil {
		l.t.Fatalf("%v\n%s", err, &out)
	}
}

// cutOff starts an Envoy whose token is gone. Envoy says so in the words of the docs.
func (l *lab) cutOff(m *mesh, secrets string) {
	l.t.Helper()
	text, err := os.ReadFile(secrets + "envoy_bootstrap.json")
	check.NoError(l.t, err)
	secret, err := os.ReadFile(secrets + "envoy_consul_token.json")
	check.NoError(l.t, err)
	token := m.Write("gone-token", "1b5cb5ba-5f4a-4a0e-8a3b-6ab3b8a4a4a4")
	gone := strings.NewReplacer("admin.sock", "gone.sock", "ready.sock", "other.sock", fmt.Sprint(metricsPort), "7199",
		secrets+"envoy_consul_token.json", m.Write("gone-secret.json", strings.ReplaceAll(string(secret), secrets+"si_token", token)),
	).Replace(string(text))
	cmd := exec.Command(l.envoy, "-c", m.Write("gone.json", gone), "--disable-hot-restart", "--concurrency", "1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var out check.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	done := make(chan error, 1)
	go func() { done <- m.Net.Do(cmd.Run) }()
	m.Eventually("Envoy says that its token is gone", func() error {
		if !strings.Contains(out.String(), "config stream to local_agent closed: 16") {
			return errors.New(out.String())
		}
		return nil
	})
	check.NoError(l.t, cmd.Process.Kill())
	<-done
}
