package apiserver

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// throughPlugin returns a client whose calls come from a plugin with that secret.
func (h *host) throughPlugin(t *testing.T, secret string) *api.Client {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServePlugin(w, r, "page", secret)
	}))
	server.Config.Protocols = &http.Protocols{}
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return api.NewOver(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
}

// A front door has the rights of its token. That its process is root's, and that it writes what agents write into
// forwarded calls, gives it no others.
func TestAFrontDoorAsksForMore(t *testing.T) {
	h := openACLHost(t)
	const list = `namespace "shop" { capabilities = ["csi-list-volume"] }`
	page, nobody := h.throughPlugin(t, mustCreate(t, h, "page", list)), h.throughPlugin(t, "")
	for namespace, code := range map[string]connect.Code{"shop": 0, "till": connect.CodePermissionDenied} {
		_, err := page.Volumes.ListVolumes(h.ctx, &hostv1.ListVolumesRequest{Namespace: namespace})
		if code == 0 {
			check.NoError(t, err)
		} else {
			wantError(t, err, code, "csi-list-volume", namespace)
		}
	}
	for name, client := range map[string]*api.Client{"with its token": page, "without one": nobody} {
		for what, call := range map[string]func() error{
			"register": func() error {
				_, err := client.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{
					Spec: spec("v", inNamespace("shop")),
				})
				return err
			},
			"make a token": func() error {
				_, err := client.ACL.CreateACLToken(h.ctx, &hostv1.CreateACLTokenRequest{Type: "management"})
				return err
			},
			"make the first token": func() error {
				ctx := withHeader(h.ctx, http.Header{call.ForwardedHeader: {"root (uid 0) on n1"}})
				_, err := client.ACL.BootstrapACL(ctx, &hostv1.BootstrapACLRequest{})
				return err
			},
			"run a file": func() error {
				_, err := client.Plugins.VerifyPlugin(h.ctx, &hostv1.VerifyPluginRequest{Path: "/bin/true"})
				return err
			},
			"stop the agent": func() error {
				_, err := client.Agent.Stop(h.ctx, &hostv1.StopRequest{})
				return err
			},
		} {
			t.Run(what+" "+name, func(t *testing.T) { wantError(t, call(), connect.CodePermissionDenied) })
		}
	}
	// What it passes on for a user counts as the user's.
	ofUser := withHeader(h.ctx, http.Header{api.TokenHeader: {mustCreate(t, h, "user", `namespace "till" { policy = "read" }`)}})
	_, err := page.Volumes.ListVolumes(ofUser, &hostv1.ListVolumesRequest{Namespace: "till"})
	check.NoError(t, err)

	// A user without a token has no part in the door's rights, but in those of everybody.
	ctx := api.WithCaller(h.ctx, "")
	_, err = page.Volumes.ListVolumes(ctx, &hostv1.ListVolumesRequest{Namespace: "shop"})
	wantError(t, err, connect.CodePermissionDenied)
	_, err = page.Volumes.ListVolumes(api.WithCaller(h.ctx, mustCreate(t, h, "other", `namespace "till" { policy = "read" }`)),
		&hostv1.ListVolumesRequest{Namespace: "shop"})
	wantError(t, err, connect.CodePermissionDenied, "csi-list-volume")

	check.NoError(t, h.Close())
	_, err = page.Volumes.ListVolumes(h.ctx, &hostv1.ListVolumesRequest{Namespace: "shop"})
	wantError(t, err, connect.CodeUnavailable, "stopping")
}
