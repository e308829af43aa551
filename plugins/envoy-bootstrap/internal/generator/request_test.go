package generator

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
)

// TestStable makes one bootstrap a hundred times, sequentially and in parallel: the bytes are the same, and each
// costs one request.
func TestStable(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first, err := generate(t, r.at, r.req, r.secret)
	check.NoError(t, err)
	before := r.proxy.Count("", "/")
	g := New(hclog.NewNullLogger())
	defer g.Close()
	for range 50 {
		if out, err := g.Generate(t.Context(), r.at, r.req); err != nil || !bytes.Equal(out.Bootstrap, first) {
			t.Fatalf("got %v and\n%s\nwant\n%s", err, out, first)
		}
	}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if out, err := g.Generate(t.Context(), r.at, r.req); err != nil || !bytes.Equal(out.Bootstrap, first) {
				t.Errorf("got %v and\n%s\nwant\n%s", err, out, first)
			}
		})
	}
	all.Wait()
	if n := r.proxy.Count("", "/") - before; n != 100 {
		t.Errorf("%d requests for 100 bootstraps", n)
	}
	if !strings.HasPrefix(string(first), "{\n  \"node\": {\n") || !strings.HasSuffix(string(first), "\n}\n") ||
		!strings.Contains(string(first), r.secret) {
		t.Errorf("not indented, not in Envoy's order, or without its token:\n%s", first)
	}
}

// TestRequests counts the requests for settings that the host does not provide.
func TestRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.at.GRPCAddress = ""
	r.at.TokenFile = r.consul.TokenFile(t, r.consul.Management)
	if _, err := generate(t, r.at, r.req, r.secret, r.consul.Management); err != nil {
		t.Fatal(err)
	}
	got := r.proxy.Requests()
	slices.Sort(got) // they are made at once
	if want := []string{"GET /v1/agent/self", "GET /v1/agent/service/" + proxyID}; !slices.Equal(got, want) {
		t.Errorf("got %s", got)
	}
}

// TestTokenFile checks that a file without a token, or of another user, is refused.
func TestTokenFile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		check.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	made := func(name string, mk func(path string) error) string {
		path := filepath.Join(dir, name)
		check.NoError(t, mk(path))
		return path
	}
	nodes := write("node-token", r.secret)
	for path, text := range map[string]string{
		filepath.Join(dir, "missing"):                "cannot be read",
		write("empty", " \n"):                        "is empty",
		write("two", r.secret+" "+r.secret):          "more than one word",
		write("long", strings.Repeat("x", maxToken)): "more than one word",
		dir: "not a regular file",
		made("link", func(p string) error { return os.Symlink(nodes, p) }):                              "is a symbolic link",
		made("hard", func(p string) error { return os.Link(write("twice", r.secret), p) }):              "is a hard link",
		made("fifo", func(p string) error { return unix.Mkfifo(p, 0o600) }):                             "not a regular file",
		made("loop", func(p string) error { return os.Symlink(p, p) }):                                  "is a symbolic link",
		made("dangling", func(p string) error { return os.Symlink(filepath.Join(dir, "gone"), p) }):     "is a symbolic link",
		made("sub/token", func(p string) error { return os.MkdirAll(filepath.Dir(p)+"/token", 0o700) }): "not a regular file",
	} {
		req := r.req
		req.TokenFile = path
		r.fails(t.Context(), t, req, codes.FailedPrecondition, text, path)
	}
	if n := r.proxy.Count("", "/"); n != 0 {
		t.Errorf("%d requests, want none without a token", n)
	}
	r.at.TokenFile = filepath.Join(dir, "missing")
	r.fails(t.Context(), t, r.req, codes.FailedPrecondition, r.at.TokenFile)
}

// TestTokenRotated replaces the token file while Generate waits for the proxy. The bootstrap must have the
// new token.
func TestTokenRotated(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := r.req
	req.ProxyID = "late"
	done := make(chan []byte, 1)
	go func() {
		out, err := generate(t, r.at, req, r.secret)
		if err != nil {
			t.Error(err)
		}
		done <- out
	}()
	r.seen(t, 2)
	rotated := identity("web")(t, r.consul)
	next := filepath.Join(filepath.Dir(req.TokenFile), "next")
	check.NoError(t, os.WriteFile(next, []byte(rotated), 0o600))
	check.NoError(t, os.Rename(next, req.TokenFile))
	r.seen(t, r.proxy.Count("", "/")+2)
	register(t, r.consul, sidecar("late", nil))
	if out := string(<-done); !strings.Contains(out, rotated) || strings.Contains(out, r.secret) {
		t.Error("the bootstrap has the token that was in the file before")
	}
}

// TestServerAddress checks that unusable addresses and CA files are refused.
func TestServerAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	at := r.at
	for address, text := range map[string]string{
		"127.0.0.1":               "has no port",
		"127.0.0.1:":              "no port from 1 to 65535",
		"127.0.0.1:99999":         "no port from 1 to 65535",
		"127.0.0.1:0":             "no port from 1 to 65535",
		"ftp://127.0.0.1:8502":    "none of host:port",
		"unix://":                 "does not name a socket",
		"https://127.0.0.1:x/v1/": "no port from 1 to 65535",
	} {
		r.at = at
		r.at.GRPCAddress = address
		r.fails(t.Context(), t, r.req, codes.InvalidArgument, text, "grpc_address")
	}
	garbage := filepath.Join(t.TempDir(), "ca.pem")
	check.NoError(t, os.WriteFile(garbage, []byte("no PEM"), 0o600))
	for path, text := range map[string]string{garbage: "no PEM certificate", "/does/not/exist": "no such file"} {
		r.at = at
		r.at.GRPCCAFile = path
		r.fails(t.Context(), t, r.req, codes.FailedPrecondition, text, path)
	}
}

func TestPreferred(t *testing.T) {
	six, four := net.IPAddr{IP: net.IPv6loopback}, net.IPAddr{IP: net.IPv4(127, 0, 0, 1)}
	for _, tc := range []struct {
		ips  []net.IPAddr
		want string
	}{
		{[]net.IPAddr{six, four}, "127.0.0.1"},
		{[]net.IPAddr{four, six}, "127.0.0.1"},
		{[]net.IPAddr{six}, "::1"},
	} {
		ip := preferred(tc.ips)
		if got := ip.String(); got != tc.want {
			t.Errorf("of %v got %s, want %s", tc.ips, got, tc.want)
		}
	}
}

// TestBadRequest checks that a bad request is refused before Consul is asked.
func TestBadRequest(t *testing.T) {
	g := New(hclog.NewNullLogger())
	defer g.Close()
	ok := asked(proxyID, "")
	for name, change := range map[string]func(*bootstrap.Request){
		"no proxy":         func(r *bootstrap.Request) { r.ProxyID = "" },
		"no admin port":    func(r *bootstrap.Request) { r.Admin.Port = 0 },
		"large admin port": func(r *bootstrap.Request) { r.Admin.Port = 65536 },
		"large ready port": func(r *bootstrap.Request) { r.Ready.Port = 65536 },
		"odd ready port":   func(r *bootstrap.Request) { r.Ready.Port = -1 },
		"relative socket":  func(r *bootstrap.Request) { r.Admin = bootstrap.Unix("admin.sock") },
		"long socket":      func(r *bootstrap.Request) { r.Ready = bootstrap.Unix("/" + strings.Repeat("x", 107)) },
		"socket and port":  func(r *bootstrap.Request) { r.Admin = bootstrap.Bind{Address: "unix:///a", Port: 1} },
	} {
		req := ok
		change(&req)
		if _, err := g.Generate(t.Context(), service.Consul{}, req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
