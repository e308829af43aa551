package generator

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

// TestReach generates bootstraps with addresses of the xDS server at which something else listens, or nothing: the
// proxy would retry for ever. The error says what is there, and names the setting.
func TestReach(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	plain := consul.Start(t, consul.Options{})
	otherCA, _, _ := consul.Certificates(t, t.TempDir())
	dir := t.TempDir()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	check.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	check.NoError(t, err)
	check.NoError(t, nobody.Close())
	web := sidecar(proxyID, nil)
	register(t, plain, web)

	overTLS, withoutTLS := r.consul.Service("default", ""), plain.Service("default", "")
	grpcPort := func(c service.Consul) string { return c.GRPCAddress[strings.LastIndex(c.GRPCAddress, ":"):] }
	for name, tc := range map[string]struct {
		at     service.Consul
		change func(c *service.Consul)
		want   string // empty: none
	}{
		"TLS":                    {overTLS, func(*service.Consul) {}, ""},
		"plain":                  {withoutTLS, func(*service.Consul) {}, ""},
		"TLS, of the agent":      {overTLS, func(c *service.Consul) { c.GRPCAddress = "" }, ""},
		"plain, of the agent":    {withoutTLS, func(c *service.Consul) { c.GRPCAddress = "" }, ""},
		"nobody":                 {withoutTLS, func(c *service.Consul) { c.GRPCAddress = nobody.Addr().String() }, "connection refused"},
		"no socket":              {withoutTLS, func(c *service.Consul) { c.GRPCAddress = "unix://" + dir + "/none" }, "no such file"},
		"HTTP":                   {withoutTLS, func(c *service.Consul) { c.GRPCAddress = c.Address }, "gRPC"},
		"HTTPS":                  {overTLS, func(c *service.Consul) { c.GRPCAddress = c.Address }, "not speak gRPC, but HTTP"},
		"TLS at a plain port":    {withoutTLS, func(c *service.Consul) { c.GRPCAddress, c.CAFile = "https://127.0.0.1"+grpcPort(*c), otherCA }, "TLS"},
		"plain at a port of TLS": {overTLS, func(c *service.Consul) { c.GRPCAddress = "127.0.0.1" + grpcPort(*c) }, "without TLS"},
		"another CA":             {overTLS, func(c *service.Consul) { c.GRPCCAFile = otherCA }, "unknown authority"},
		"silence":                {withoutTLS, func(c *service.Consul) { c.GRPCAddress = silent.Addr().String() }, "gRPC"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.change(&tc.at)
			g := New(hclog.NewNullLogger())
			defer g.Close()
			req := asked(proxyID, "")
			if tc.at.Address == overTLS.Address {
				req.TokenFile = r.req.TokenFile
				if tc.at.GRPCAddress == "" {
					tc.at.TokenFile = r.consul.TokenFile(t, r.consul.Management)
				}
			}
			if tc.want != "" {
				req.Wait = 500 * time.Millisecond
			}
			_, err := g.Generate(t.Context(), tc.at, req)
			if tc.want == "" {
				check.NoError(t, err)
				return
			}
			if status.Code(err) != codes.Unavailable {
				t.Fatalf("got %v", err)
			}
			for _, part := range []string{tc.want, "grpc_address", proxyID} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want %q in it", err, part)
				}
			}
		})
	}
}

// TestListenAddress checks at which of an agent's addresses its xDS server is.
func TestListenAddress(t *testing.T) {
	for _, tc := range []struct {
		address string
		listens []string
		want    string
	}{
		{"127.0.0.1:8500", []string{"tcp://127.0.0.1:8502"}, "127.0.0.1:8502"},
		{"127.0.0.1:8500", nil, "127.0.0.1:8502"},
		{"127.0.0.1:8500", []string{"tcp://0.0.0.0:8502"}, "127.0.0.1:8502"},
		{"https://consul.example:8501", []string{"tcp://[::]:8502"}, "consul.example:8502"},
		{"http://[::1]:8500/consul", []string{"tcp://[::]:8502"}, "[::1]:8502"},
		{"[::1]:8500", []string{"tcp://[::1]:8502"}, "[::1]:8502"},
		{"10.0.0.7:8500", []string{"tcp://127.0.0.1:8502", "tcp://10.0.0.7:8502"}, "10.0.0.7:8502"},
		{"10.0.0.7:8500", []string{"tcp://10.0.0.9:8502"}, "10.0.0.9:8502"},
		{"localhost:8500", []string{"tcp://127.0.0.1:8502"}, "127.0.0.1:8502"},
		{"unix:///run/consul.sock", []string{"tcp://0.0.0.0:8502"}, "localhost:8502"},
		{"unix:///run/consul.sock", []string{"tcp://10.0.0.9:8502"}, "10.0.0.9:8502"},
		{"127.0.0.1:8500", []string{"unix:///run/grpc.sock", "tcp://10.0.0.9:8502"}, "10.0.0.9:8502"},
		{":8500", nil, "localhost:8502"},
	} {
		if got := listenAddress(service.Consul{Address: tc.address}, tc.listens, 8502); got != tc.want {
			t.Errorf("of %s, with %q: got %s, want %s", tc.address, tc.listens, got, tc.want)
		}
	}
}

// TestFilesBesideTheBootstrap checks that the token is not in the bootstrap of a request with a directory.
func TestFilesBesideTheBootstrap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.req.Dir = filepath.Dir(r.req.TokenFile)
	g := New(hclog.NewNullLogger())
	defer g.Close()
	out, err := g.Generate(t.Context(), r.at, r.req)
	check.NoError(t, err)
	ca, err := os.ReadFile(r.at.CAFile)
	check.NoError(t, err)
	pem := strings.Fields(string(ca))[3]
	if len(out.Files) != 2 || strings.Contains(string(out.Bootstrap), r.secret) ||
		strings.Contains(string(out.Bootstrap), pem) ||
		!strings.Contains(string(out.Files["envoy_consul_ca.json"]), pem) ||
		!strings.Contains(string(out.Files["envoy_consul_token.json"]), r.req.TokenFile) {
		t.Errorf("got the files %s and\n%s", out.Files, out.Bootstrap)
	}
	r.req.Dir = "secrets"
	if _, err := g.Generate(t.Context(), r.at, r.req); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v", err)
	}
}
