package consul

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "5ec4e7"

func newPool(t *testing.T) *Pool {
	t.Helper()
	p := NewPool()
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// ask requests the leader from c, as a plugin does.
func ask(ctx context.Context, p *Pool, c service.Consul) error {
	client, err := p.Client(c, secret)
	if err != nil {
		return err
	}
	_, err = client.Raw().Query("/v1/status/leader", new(string), new(api.QueryOptions).WithContext(ctx))
	return Error(err, c, "ask for the leader")
}

func wantCode(t *testing.T, err error, code codes.Code, text ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("got %v, want %s", err, code)
		return
	}
	for _, s := range text {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q is not in the error: %v", s, err)
		}
	}
	if err != nil && strings.Contains(err.Error(), secret) {
		t.Errorf("the token is in the error: %v", err)
	}
}

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func answer(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `"127.0.0.1:8300"`) }

// TestRealConsul reaches a real Consul in three ways: plain, TLS with a client certificate, and a unix socket.
func TestRealConsul(t *testing.T) {
	p := newPool(t)
	socket := filepath.Join(t.TempDir(), "http.sock")
	plain := consul.Start(t, consul.Options{ACL: true, Config: `addresses { http = "127.0.0.1 unix://` + socket + `" }`})
	secure := consul.Start(t, consul.Options{ACL: true, TLS: true, ClientCerts: true})
	unix := plain.Service("unix", "")
	unix.Address = "unix://" + socket
	named := plain.Service("named", "")
	named.Address = "http://" + named.Address
	for _, c := range []struct {
		consul service.Consul
		token  string
	}{
		{plain.Service("plain", ""), plain.Management},
		{named, plain.Management},
		{unix, plain.Management},
		{secure.Service("tls", ""), secure.Management},
	} {
		t.Run(c.consul.Name, func(t *testing.T) {
			client, err := p.Client(c.consul, c.token)
			check.NoError(t, err)
			if _, _, err := client.ACL().TokenReadSelf(nil); err != nil {
				t.Error(err)
			}
			client, err = p.Client(c.consul, "")
			check.NoError(t, err)
			_, _, err = client.ACL().TokenReadSelf(nil)
			if err == nil {
				_, err = client.Agent().Self()
			}
			wantCode(t, Error(err, c.consul, "ask without a token"), codes.PermissionDenied, c.consul.Address,
				`"`+c.consul.Name+`"`)
		})
	}
	t.Run("down", func(t *testing.T) {
		plain.Kill(0)
		wantCode(t, ask(t.Context(), p, plain.Service("plain", "")), codes.Unavailable, "connection refused",
			"ask for the leader on Consul \"plain\"")
		wantCode(t, ask(t.Context(), p, unix), codes.Unavailable)
	})
}

// TestTLS uses files that are wrong, missing, and replaced while the client runs.
func TestTLS(t *testing.T) {
	p := newPool(t)
	right, wrong := consul.Start(t, consul.Options{TLS: true, ClientCerts: true}), consul.Start(t,
		consul.Options{TLS: true})
	good := right.Service("tls", "")
	read := func(path string) []byte {
		text, err := os.ReadFile(path)
		check.NoError(t, err)
		return text
	}
	empty := filepath.Join(t.TempDir(), "empty")
	check.NoError(t, os.WriteFile(empty, nil, 0o600))
	for name, c := range map[string]struct {
		change func(*service.Consul)
		text   string
	}{
		"another CA": {func(c *service.Consul) { c.CAFile = wrong.CAFile() }, "check ca_file"},
		"no CA":      {func(c *service.Consul) { c.CAFile = "" }, "check ca_file"},
		"no CA file": {
			func(c *service.Consul) { c.CAFile = empty + "x" },
			"ca_file cannot be read: stat " + empty + "x",
		},
		"an empty CA file": {func(c *service.Consul) { c.CAFile = empty }, "has no PEM certificate"},
		"another name":     {func(c *service.Consul) { c.TLSServerName = "other.test" }, "tls_server_name"},
		"no certificate":   {func(c *service.Consul) { c.CertFile, c.KeyFile = "", "" }, "check cert_file and key_file"},
		"half a key pair":  {func(c *service.Consul) { c.KeyFile = "" }, "not a key pair"},
		"an empty key":     {func(c *service.Consul) { c.KeyFile = empty }, "not a key pair"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := good
			c.change(&bad)
			wantCode(t, ask(t.Context(), p, bad), codes.FailedPrecondition, c.text)
		})
	}
	t.Run("no TLS at all", func(t *testing.T) {
		s := serve(t, answer)
		c := service.Consul{Name: "plain", Address: "https://" + s.Listener.Addr().String()}
		wantCode(t, ask(t.Context(), p, c), codes.FailedPrecondition, "not https")
	})
	t.Run("a name", func(t *testing.T) {
		named := good
		named.TLSServerName = "server.dc1.consul"
		wantCode(t, ask(t.Context(), p, named), codes.OK)
	})
	t.Run("a directory of CAs", func(t *testing.T) {
		c := good
		c.CAFile = t.TempDir()
		wantCode(t, ask(t.Context(), p, c), codes.FailedPrecondition, "has no PEM certificate")
		for name, path := range map[string]string{"a.pem": wrong.CAFile(), "b.pem": right.CAFile()} {
			check.NoError(t, os.WriteFile(filepath.Join(c.CAFile, name), read(path), 0o600))
		}
		wantCode(t, ask(t.Context(), p, c), codes.OK)
	})
	t.Run("replaced", func(t *testing.T) {
		ca := filepath.Join(t.TempDir(), "ca.pem")
		c := good
		c.CAFile = ca
		for range 2 {
			for path, code := range map[string]codes.Code{wrong.CAFile(): codes.FailedPrecondition, right.CAFile(): codes.OK} {
				check.NoError(t, os.WriteFile(ca, read(path), 0o600))
				p.transports[c] = nil // as the pool does after idleAfter
				wantCode(t, ask(t.Context(), p, c), code)
			}
		}
	})
}

// TestEnvironment checks that environment variables of the process have no effect.
func TestEnvironment(t *testing.T) {
	var token, query string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		token, query = r.Header.Get("X-Consul-Token"), r.URL.RawQuery
		answer(w, r)
	})
	for name, value := range map[string]string{
		"CONSUL_HTTP_ADDR": "127.0.0.1:1", "CONSUL_HTTP_TOKEN": secret, "CONSUL_HTTP_TOKEN_FILE": "/none",
		"CONSUL_HTTP_SSL":  "true",
		"CONSUL_NAMESPACE": "x", "CONSUL_PARTITION": "y", "CONSUL_CACERT": "/none",
	} {
		t.Setenv(name, value)
	}
	p := newPool(t)
	c := service.Consul{Name: "c", Address: s.Listener.Addr().String()}
	client, err := p.Client(c, "")
	check.NoError(t, err)
	if _, err := client.Status().Leader(); err != nil || token != "" || query != "" {
		t.Errorf("got token %q, query %q, %v; want none", token, query, err)
	}
	c.Datacenter, c.Namespace, c.Partition = "d", "n", "p"
	if err := ask(t.Context(), p, c); err != nil || token != secret || query != "dc=d&ns=n&partition=p" {
		t.Errorf("got token %q, query %q, %v", token, query, err)
	}
}

// TestRedirect checks that a token is not sent to the target of a redirect.
func TestRedirect(t *testing.T) {
	var asked atomic.Int32
	thief := serve(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, thief.URL, http.StatusTemporaryRedirect)
	})
	wantCode(t, ask(t.Context(), newPool(t), service.Consul{Address: s.Listener.Addr().String()}), codes.Internal, "307")
	if asked.Load() != 0 {
		t.Error("it was followed")
	}
}

// TestConnections makes many requests, twice, and checks that few connections are opened, and that they are
// reused.
func TestConnections(t *testing.T) {
	var opened, arrived atomic.Int32
	full := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := int(arrived.Add(1)) - 1
		burst, n := n/(5*maxConns), n%(5*maxConns)
		if n == maxConns-1 { // the maximum number of requests is now in flight
			close(full[burst])
		}
		<-full[burst]
		answer(w, r)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	p := newPool(t)
	for range full {
		var all sync.WaitGroup
		for range 5 * maxConns {
			all.Go(func() {
				if err := ask(t.Context(), p, service.Consul{Address: s.Listener.Addr().String()}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	if n := opened.Load(); n != maxConns {
		t.Errorf("%d connections, want %d", n, maxConns)
	}
}

// TestFailedHandshake checks that the connection is closed if its handshake fails.
func TestFailedHandshake(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	ended := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, _ = io.WriteString(conn, "no TLS, and no HTTP")
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			_, err = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
		ended <- err
	}()
	wantCode(t, ask(t.Context(), newPool(t), service.Consul{Address: "https://" + l.Addr().String()}), codes.Unavailable)
	if err := <-ended; err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection was not closed: %v", err)
	}
}

// TestClose closes a pool while a call and a connection attempt are in progress. Both end, and nothing is
// left.
func TestClose(t *testing.T) {
	before := goleak.IgnoreCurrent()
	arrived := make(chan struct{})
	held := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	}))
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	check.NoError(t, err)
	p := NewPool()
	ended := make(chan error, 1)
	go func() { ended <- ask(context.Background(), p, service.Consul{Address: held.Listener.Addr().String()}) }()
	<-arrived

	// http.Transport continues a connection attempt after its request was cancelled.
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	wantCode(t, ask(short, p, service.Consul{Address: "https://" + mute.Addr().String()}), codes.DeadlineExceeded)

	for range 2 {
		check.NoError(t, p.Close())
	}
	select {
	case err := <-ended:
		wantCode(t, err, codes.Unavailable)
	case <-time.After(time.Minute):
		t.Fatal("the call in flight continues")
	}
	wantCode(t, ask(t.Context(), p, service.Consul{Address: "127.0.0.1:1"}), codes.Unavailable, "closing")
	_ = mute.Close()
	held.Close()
	goleak.VerifyNone(t, before)
}

func TestAddress(t *testing.T) {
	p := newPool(t)
	for _, address := range []string{"", "unix://", "ftp://x", "https://"} {
		_, err := p.Client(service.Consul{Name: "c", Address: address}, "")
		wantCode(t, err, codes.InvalidArgument, `"c"`)
	}
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/behind/v1/status/leader" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		answer(w, r)
	})
	wantCode(t, ask(t.Context(), p, service.Consul{Address: s.URL + "/behind"}), codes.OK)
}
