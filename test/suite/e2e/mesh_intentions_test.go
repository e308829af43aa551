package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testhost"
)

// TestIntentions runs two workloads with Consul's own proxy as their sidecars, each with its own token. They
// talk by mTLS, and only if an intention allows it: that of db's spec, or what others have written in its place.
func TestIntentions(t *testing.T) {
	t.Parallel()
	m := newMesh(t, minted, "")
	m.open()
	checkLeaves(t, m)
	program, ca := proxyProgram(t, m)
	upstream := freePort(t)
	web := runInMesh(t, m, "web", program, ca, fmt.Sprintf(`
          upstreams {
            destination_name = "db"
            local_bind_port  = %d
          }`, upstream), "")
	db := runInMesh(t, m, "db", program, ca, "", `intentions = ["web"]`)
	serve(t, m.workload("db").GetPorts()["app"], "the rows")

	ask := func() (string, error) { return get(fmt.Sprintf("http://127.0.0.1:%d/", upstream)) }
	entries := m.consul.Client(m.consul.Management).ConfigEntries()
	allowed := func() {
		t.Helper()
		m.Eventually("the intention lets it through", func() error {
			got, err := ask()
			if err == nil && got != "the rows" {
				t.Fatalf("the answer is %q", got)
			}
			return err
		})
	}
	allowed()
	_, _, err := entries.Set(&api.ServiceIntentionsConfigEntry{
		Kind: api.ServiceIntentions, Name: "db", Sources: []*api.SourceIntention{{Name: "web", Action: "deny"}},
	}, nil)
	check.NoError(t, err)
	m.Eventually("the intention denies it", func() error {
		if got, err := ask(); err == nil {
			return fmt.Errorf("it went through: %q", got)
		}
		return nil
	})
	resync := func() { // the catalog of the node changes
		m.Run("workload", "start", m.meshWorkload("other", "  service \"other\" {}"))
		m.Run("workload", "stop", "other")
	}
	resync()
	m.Eventually("the intentions of others are reported", func() error {
		if text := m.service("db").GetMessage(); !strings.Contains(text, "not Pannier's") ||
			!strings.Contains(m.Run("events"), "intentions-conflict") {
			return fmt.Errorf("the status says %q", text)
		}
		return nil
	})
	_, err = entries.Delete(api.ServiceIntentions, "db", nil)
	check.NoError(t, err)
	resync()
	allowed()
	refusedWithoutCertificate(t, m.workload("db").GetPorts()["proxy"])

	for _, cmd := range []*exec.Cmd{web, db} {
		check.NoError(t, cmd.Process.Signal(unix.SIGTERM))
	}
	exitCode(web)
	exitCode(db)
	m.nothingInMesh()
	if got, err := ask(); err == nil {
		t.Errorf("got an answer although the workloads have ended: %q", got)
	}
}

// checkLeaves checks that each service's token gets the certificate of that service, and of no other. The
// services have no proxy, and the other services' certificates are requested first: a Consul agent serves
// certificates from its cache, which contains those of its proxies, to any token.
func checkLeaves(t *testing.T, m *mesh) {
	t.Helper()
	names := []string{"one", "two"}
	tokens := map[string]string{}
	for _, name := range names {
		m.Run("workload", "start", m.meshWorkload(name, fmt.Sprintf(`
  service %q {
    port = 9000
    connect {
      native = true
    }
  }`, name)))
		tokens[name] = m.secret(m.service(name))
	}
	leaf := func(token, of string) (*api.LeafCert, error) {
		got, _, err := m.consul.Client(tokens[token]).Agent().ConnectCALeaf(of, nil)
		return got, err
	}
	for _, pair := range [][2]string{{"one", "two"}, {"two", "one"}} {
		if _, err := leaf(pair[0], pair[1]); err == nil || !strings.Contains(err.Error(), "Permission denied") {
			t.Errorf("with the token of %q, the request for the certificate of %q returned %v", pair[0], pair[1], err)
		}
	}
	for _, name := range names {
		got, err := leaf(name, name)
		if err != nil {
			t.Fatalf("with the token of %q, its own certificate: %v", name, err)
		}
		block, _ := pem.Decode([]byte(got.CertPEM))
		cert, err := x509.ParseCertificate(block.Bytes)
		check.NoError(t, err)
		want := "/ns/default/dc/" + consul.Datacenter + "/svc/" + name
		if len(cert.URIs) != 1 || cert.URIs[0].Scheme != "spiffe" || cert.URIs[0].Path != want {
			t.Errorf("the certificate of %q is for %v, want a SPIFFE id with %s", name, cert.URIs, want)
		}
		m.Run("workload", "stop", name)
	}
}

// proxyProgram copies Consul's program and its CA's certificate to paths that the workloads' user
// can read.
func proxyProgram(t *testing.T, m *mesh) (program, ca string) {
	t.Helper()
	program, ca = m.Path("consul"), m.Path("ca.pem")
	for _, f := range []struct {
		from, to string
		mode     os.FileMode
	}{{consul.Binary(t), program, 0o755}, {m.consul.CAFile(), ca, 0o644}} {
		raw, err := os.ReadFile(f.from)
		if err == nil {
			err = os.WriteFile(f.to, raw, f.mode)
		}
		check.NoError(t, err)
	}
	return program, ca
}

// runInMesh runs a workload in the foreground, with a proxy as its sidecar, until the end of the test.
// service has further lines of its service block.
func runInMesh(t *testing.T, m *mesh, name, program, ca, proxy, service string) *exec.Cmd {
	t.Helper()
	spec := m.meshWorkload(name, fmt.Sprintf(`
  network {
    port "app" {}
    port "proxy" {}
  }
  service %q {
    port = "app"
    %s
    connect {
      sidecar_service {
        port = "proxy"
        proxy {
%s
        }
      }
    }
  }
  sidecar {
    command = [%q, "connect", "proxy", "-proxy-id", "${proxy_id}", "-token-file", "${token_file}"]
    env {
      CONSUL_HTTP_ADDR = %q
      CONSUL_CACERT    = %q
    }
  }
`, name, service, proxy, program, m.reach.Address, ca))
	cmd := m.Command("workload", "run", spec, "--", "sh", "-c", "echo up; exec sleep infinity")
	path := m.Path(name + ".log") // with the proxy's output
	log, err := os.Create(path)
	check.NoError(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	check.NoError(t, cmd.Start())
	said := func() string {
		text, _ := os.ReadFile(path)
		return string(text)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if t.Failed() {
			t.Logf("workload %q and its proxy said:\n%s", name, said())
		}
	})
	m.Eventually(fmt.Sprintf("workload %q runs", name), func() error {
		if !strings.Contains(said(), "up\n") {
			return errors.New(said())
		}
		return nil
	})
	return cmd
}

// serve answers all requests with a text, as the program of a workload.
func serve(t *testing.T, port int32, text string) {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	check.NoError(t, err)
	s := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }),
		ReadHeaderTimeout: time.Minute,
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
}

// get makes a request over a new connection.
func get(url string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testhost.Wait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	return string(raw), err
}

// refusedWithoutCertificate checks that a proxy refuses a caller without a certificate of the mesh.
func refusedWithoutCertificate(t *testing.T, port int32) {
	t.Helper()
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port),
		&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	if err == nil {
		defer conn.Close()
		if err = conn.SetDeadline(time.Now().Add(testhost.Wait)); err == nil {
			_, err = conn.Read(make([]byte, 1)) // with TLS 1.3 the refusal comes after the handshake
		}
	}
	if err == nil || !strings.Contains(err.Error(), "remote error: tls: ") {
		t.Errorf("a caller without a certificate got %v", err)
	}
}

// freePort returns a port outside the ranges that are used by the kernel for outgoing connections (from 32768
// on) and by Pannier for workloads.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 10000 + rand.IntN(10000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}
