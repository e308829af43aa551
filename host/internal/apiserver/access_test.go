package apiserver

import (
	"context"
	"net/http"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
	"github.com/pannier/pannier/test/lib/check"
)

// overHTTPS opens a host with ACLs whose HTTP port has TLS, and returns clients of that port.
func overHTTPS(t *testing.T) (h *host, client func(certificate bool) (*http.Client, string)) {
	t.Helper()
	authority := pkitest.New(t)
	h = openACLHost(t, func(c *parts) { c.Certs = authority.Certs(t, pki.Server, "n1") })
	return h, func(certificate bool) (*http.Client, string) {
		cfg := authority.Certs(t, pki.CLI, "ops").Client(pki.Server, "n1", "h2", "http/1.1")
		if !certificate {
			cfg.Certificates = nil
		}
		via := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
		t.Cleanup(via.CloseIdleConnections)
		return &http.Client{Transport: via}, "https://" + h.HTTPAddress()
	}
}

// withSecret sends a token with each request.
type withSecret struct {
	http.RoundTripper
	secret string
}

func (w withSecret) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(api.TokenHeader, w.secret)
	return w.RoundTripper.RoundTrip(r)
}

// Over HTTPS the API needs a certificate, also with a token. Health, metrics and public keys need none.
func TestAPIOverHTTPSNeedsACertificate(t *testing.T) {
	h, client := overHTTPS(t)
	secret := mustCreate(t, h, "nodes", `node { policy = "read" }`)
	for name, c := range map[string]struct {
		certificate bool
		secret      string
		code        connect.Code // 0: it is answered
		says        string
	}{
		"neither":       {false, "", connect.CodePermissionDenied, "it showed no certificate"},
		"a token":       {false, secret, connect.CodePermissionDenied, "it showed no certificate"},
		"a certificate": {true, "", connect.CodePermissionDenied, "has no token"},
		"both":          {true, secret, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			with, url := client(c.certificate)
			if c.secret != "" {
				with.Transport = withSecret{with.Transport, c.secret}
			}
			_, err := hostv1connect.NewDeviceServiceClient(with, url).ListDevices(h.ctx, &hostv1.ListDevicesRequest{})
			if c.code == 0 {
				check.NoError(t, err)
				return
			}
			wantError(t, err, c.code, c.says)
		})
	}
	nobody, url := client(false)
	for _, path := range []string{"/v1/health", "/v1/metrics"} {
		resp, err := nobody.Get(url + path)
		if check.NoError(t, err); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, resp.Status)
		}
		check.NoError(t, resp.Body.Close())
	}
}

// A caller without a token is refused at once where no policy is for such callers, also for calls that need no
// permission of their own, such as a stream of events that are all hidden from it.
func TestStreamOfAStrangerIsNotHeld(t *testing.T) {
	h, client := overHTTPS(t)
	for _, certificate := range []bool{false, true} {
		with, url := client(certificate)
		follow := func() error {
			ctx, cancel := context.WithCancel(h.ctx)
			defer cancel()
			stream, err := hostv1connect.NewAgentServiceClient(with, url).Events(ctx,
				&hostv1.EventsRequest{Follow: true, Recent: 1})
			if err != nil {
				return err
			}
			defer stream.Close()
			h.bus.Publish(events.Event{Topic: events.TopicAgent, Type: events.TypeLagged, Subject: "s"}) // for everyone
			_, err = next(stream)
			return err
		}
		wantError(t, follow(), connect.CodePermissionDenied)
		_, err := hostv1connect.NewACLServiceClient(with, url).GetACLSelf(h.ctx, &hostv1.GetACLSelfRequest{})
		wantError(t, err, connect.CodePermissionDenied)
		_, err = h.client.ACL.PutACLPolicy(h.ctx,
			&hostv1.PutACLPolicyRequest{Name: "anonymous", Rules: `plugin { policy = "list" }`})
		check.NoError(t, err)
		err = follow()
		if certificate {
			check.NoError(t, err)
		} else {
			wantError(t, err, connect.CodePermissionDenied, "it showed no certificate")
		}
		_, err = h.client.ACL.DeleteACLPolicy(h.ctx, &hostv1.DeleteACLPolicyRequest{Name: "anonymous"})
		check.NoError(t, err)
	}
}
