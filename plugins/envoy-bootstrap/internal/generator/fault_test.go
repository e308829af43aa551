package generator

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

const proxyID = "web-1-sidecar-proxy"

// rig is a Consul behind a proxy, with web's sidecar registered, and the sidecar's token.
type rig struct {
	consul *consul.Cluster
	proxy  *consul.Proxy
	at     service.Consul
	secret string
	req    bootstrap.Request
}

func newRig(t *testing.T) *rig {
	t.Helper()
	c := consul.Start(t, consul.Options{ACL: true, TLS: true})
	register(t, c, sidecar(proxyID, nil))
	p := c.Proxy(t, 0)
	secret := identity("web")(t, c)
	return &rig{
		consul: c, proxy: p, at: p.Service(c.Service("default", "")), secret: secret,
		req: asked(proxyID, c.TokenFile(t, secret)),
	}
}

// fails checks that Generate fails with a code and that its error contains all these texts.
func (r *rig) fails(ctx context.Context, t *testing.T, req bootstrap.Request, code codes.Code, texts ...string) {
	t.Helper()
	out, err := generateWithin(ctx, t, r.at, req, r.secret)
	if status.Code(err) != code || out != nil {
		t.Errorf("got %d bytes and %v, want %s", len(out), err, code)
	}
	for _, text := range append(texts, `"`+req.ProxyID+`"`) {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q in it", err, text)
		}
	}
}

// inBackground calls Generate in the background.
func (r *rig) inBackground(ctx context.Context, t *testing.T, req bootstrap.Request) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := generateWithin(ctx, t, r.at, req, r.secret)
		done <- err
	}()
	return done
}

// seen waits until n requests have passed the proxy.
func (r *rig) seen(t *testing.T, n int) {
	t.Helper()
	check.Eventually(t, fmt.Sprintf("%d requests", n), func() bool { return r.proxy.Count("", "/") >= n })
}

// TestRegistrationLate registers the proxy while the generator waits for it.
func TestRegistrationLate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := r.req
	req.ProxyID = "late"
	done := r.inBackground(t.Context(), t, req)
	r.seen(t, 3)
	register(t, r.consul, sidecar("late", nil))
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRegistrationNever(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := r.req
	req.ProxyID, req.Wait = "never", 300*time.Millisecond
	began := time.Now()
	r.fails(t.Context(), t, req, codes.NotFound, "not within 300ms", "not registered", "/v1/agent/services", r.at.Address)
	if took := time.Since(began); took < req.Wait {
		t.Errorf("gave up after %s, before the wait of %s was over", took, req.Wait)
	}
	if n := r.proxy.Count("", "/"); n > 4 {
		t.Errorf("%d requests in 300 ms, want a growing pause between them", n)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	req.Wait = 0
	r.fails(ctx, t, req, codes.DeadlineExceeded, "not registered")

	ctx, cancel = context.WithCancel(t.Context())
	before := r.proxy.Count("", "/")
	done := r.inBackground(ctx, t, req)
	r.seen(t, before+1)
	cancel()
	if err := <-done; status.Code(err) != codes.Canceled {
		t.Errorf("got %v, want Canceled", err)
	}
}

// TestNoProxy checks that requests which no wait could satisfy fail at once.
func TestNoProxy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	register(t, r.consul, &api.AgentServiceRegistration{ID: "web-1", Name: "web", Port: 8080})
	register(t, r.consul, &api.AgentServiceRegistration{
		ID: "native-1", Name: "web", Port: 8081,
		Connect: &api.AgentServiceConnect{Native: true},
	})
	for _, id := range []string{"web-1", "native-1"} {
		req := r.req
		req.ProxyID = id
		r.fails(t.Context(), t, req, codes.InvalidArgument, "neither a sidecar nor a gateway", "-sidecar-proxy")
	}
	if n := r.proxy.Count("", "/"); n != 2 {
		t.Errorf("%d requests, want one for each", n)
	}
}

// TestFaultsPass lets Consul fail a few times: the generator retries.
func TestFaultsPass(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, fault := range map[string]consul.Fault{
		"500":           consul.Status(http.StatusInternalServerError, "rpc error: No cluster leader"),
		"429":           consul.Status(http.StatusTooManyRequests, "rate limit"),
		"refused":       consul.Refuse(),
		"answer lost":   consul.Cut(),
		"token unknown": consul.Status(http.StatusForbidden, "ACL not found"),
	} {
		before := r.proxy.Count("", "/")
		r.proxy.Add(consul.Match{Times: 2}, fault)
		if _, err := generate(t, r.at, r.req, r.secret); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// net/http itself retries a request whose connection broke.
		if n := r.proxy.Count("", "/") - before; n < 3 {
			t.Errorf("%s: %d requests, want 3", name, n)
		}
		r.proxy.Clear()
	}

	r.proxy.Down()
	done := r.inBackground(t.Context(), t, r.req)
	r.proxy.Up(t)
	if err := <-done; err != nil {
		t.Errorf("down: %v", err)
	}
}

// TestFaultsStay lets Consul fail until the wait is over.
func TestFaultsStay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := r.req
	req.Wait = 300 * time.Millisecond
	for name, tc := range map[string]struct {
		fault consul.Fault
		code  codes.Code
		text  string
	}{
		"500": {
			consul.Status(http.StatusInternalServerError, "No cluster leader"), codes.Unavailable,
			"No cluster leader",
		},
		"stalled": {consul.Stall(), codes.DeadlineExceeded, "did not answer in time"},
		"token unknown": {
			consul.Status(http.StatusForbidden, "ACL not found"), codes.PermissionDenied,
			"the agent does not know",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r.proxy.Add(consul.Match{}, tc.fault)
			defer r.proxy.Clear()
			r.fails(t.Context(), t, req, tc.code, "not within 300ms", tc.text)
		})
	}
	t.Run("last look stalls", func(t *testing.T) {
		r.proxy.Add(consul.Match{Times: 1}, consul.Status(http.StatusInternalServerError, "No cluster leader"))
		r.proxy.Add(consul.Match{}, consul.Stall())
		defer r.proxy.Clear()
		r.fails(t.Context(), t, req, codes.Unavailable, "No cluster leader")
	})
	t.Run("stalled and canceled", func(t *testing.T) {
		r.proxy.Add(consul.Match{}, consul.Stall())
		defer r.proxy.Clear()
		before := r.proxy.Count("", "/")
		ctx, cancel := context.WithCancel(t.Context())
		done := r.inBackground(ctx, t, r.req)
		r.seen(t, before+1)
		cancel()
		select {
		case err := <-done:
			if status.Code(err) != codes.Canceled {
				t.Errorf("got %v, want Canceled", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("a stalled Consul holds a canceled call")
		}
	})
}

// TestFinalFaults checks that errors which a retry would not change are returned at once.
func TestFinalFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := r.req
	req.TokenFile = r.consul.TokenFile(t, r.consul.Token(t))
	r.fails(t.Context(), t, req, codes.PermissionDenied, "Permission denied")
	req.TokenFile = ""
	r.fails(t.Context(), t, req, codes.PermissionDenied, "Permission denied")
	if n := r.proxy.Count("", "/"); n != 2 {
		t.Errorf("%d requests, want one for each", n)
	}
	// Without a token of the proxy's, the node's token reads the registration, but is not in the file.
	r.at.TokenFile = r.consul.TokenFile(t, r.consul.Management)
	out, err := generate(t, r.at, req, r.consul.Management)
	if err != nil || strings.Contains(string(out), r.consul.Management) {
		t.Errorf("got %v; the node's token in the file: %t", err, strings.Contains(string(out), r.consul.Management))
	}
}

// TestAgentWithoutXDS checks that the error says to set a port.
func TestAgentWithoutXDS(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.at.GRPCAddress = ""
	r.at.TokenFile = r.consul.TokenFile(t, r.consul.Management)
	self, err := json.Marshal(map[string]any{"xDS": map[string]any{"Ports": map[string]int{"Plaintext": -1, "TLS": 0}}})
	check.NoError(t, err)
	r.proxy.Add(consul.Match{Path: "/v1/agent/self"}, consul.Status(http.StatusOK, string(self)))
	r.fails(t.Context(), t, r.req, codes.FailedPrecondition, "does not serve xDS", "ports.grpc", "grpc_address")
}

// TestNoCA checks that no bootstrap is made that would send the token to a server that nothing verifies.
func TestNoCA(t *testing.T) {
	for _, answer := range []string{`{"Roots": []}`, `{"Roots": [null]}`, `null`} {
		agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(answer))
		}))
		g := New(hclog.NewNullLogger())
		s, err := g.server(t.Context(), service.Consul{Name: "default", Address: agent.URL, GRPCAddress: "https://127.0.0.1:8503"}, "")
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "grpc_ca_file") {
			t.Errorf("%s: got %+v, %v", answer, s, err)
		}
		check.NoError(t, g.Close())
		agent.Close()
	}
}
