package nomad

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/plugins/internal/frontdoor"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/frontend"
)

// config is the config block of the plugin.
type config struct {
	Region string   `json:"region" default:"global" doc:"the region that clients may ask for"`
	Hosts  []string `json:"hosts" doc:"names that clients may use for a TCP address, besides localhost and IP addresses"`
}

// Door is the front door. Its listen block is "nomad".
type Door struct{ sdk.Config[config] }

const (
	listenName = "nomad"
	// readyTimeout bounds how long the API may take to answer before this process takes over.
	readyTimeout = 10 * time.Second
)

// Ready is called before this process takes over from another one: it must have a right address, and the API must
// answer, whatever it says.
func (d *Door) Ready(ctx context.Context, host frontend.Host) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	listener, _, err := listen(host)
	if err == nil {
		err = listener.Close() // a copy of the socket
	}
	if err == nil {
		_, err = aclsOn(ctx, host.API)
	}
	return err
}

// listen returns the listener, and whether its address is one of TCP.
func listen(host frontend.Host) (listener net.Listener, tcp bool, err error) {
	listener, err = host.Listen(listenName)
	if err != nil {
		return nil, false, err
	}
	at, tcp := listener.Addr().(*net.TCPAddr)
	if !frontdoor.Local(listener.Addr()) {
		return nil, true, errors.Join(fmt.Errorf("listen %q: %s can be reached from other machines, and tokens would be sent "+
			"to it unencrypted: use 127.0.0.1 or a unix socket, behind a proxy that has a certificate", listenName, at),
			listener.Close())
	}
	return listener, tcp, nil
}

// Serve serves clients until ctx ends.
func (d *Door) Serve(ctx context.Context, host frontend.Host) error {
	listener, tcp, err := listen(host)
	if err != nil {
		return err
	}
	s := &server{api: host.API, config: d.Get, serving: ctx, log: slog.Default()}
	handler := s.handler()
	if tcp {
		handler = s.guard(handler)
	}
	return frontend.ServeHTTP(ctx, listener, handler)
}

// guard protects a TCP address, which every local user and every page in a browser of this machine can reach: it is
// served under names of this machine only, to no page of another origin, and only while each caller needs a token.
func (s *server) guard(next http.Handler) http.Handler {
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !frontdoor.KnownHost(r.Host, s.config().Hosts) {
			s.refuse(w, r, &statusError{
				code: http.StatusForbidden,
				text: permissionDenied + fmt.Sprintf(": %q is not a name of this API: use an IP address or localhost, or add the name "+
					"to hosts in the config block of the plugin", r.Host),
			})
			return
		}
		on, err := aclsOn(r.Context(), s.api)
		if err == nil && !on {
			err = &statusError{
				code: http.StatusForbidden,
				text: permissionDenied + ": ACLs are off, and any user of this machine can reach a TCP address: turn ACLs on " +
					"(acl { enabled = true }), or let the plugin listen on a unix socket",
			}
		}
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	}))
}

// aclsOn reports whether the host has ACLs on. It asks as somebody without a token, who may know that.
func aclsOn(ctx context.Context, client *api.Client) (bool, error) {
	_, err := client.ACL.GetACLSelf(api.WithCaller(ctx, ""), &hostv1.GetACLSelfRequest{})
	switch connect.CodeOf(err) {
	case connect.CodeFailedPrecondition:
		return false, nil
	case connect.CodePermissionDenied:
		return true, nil
	}
	return err == nil, err
}
