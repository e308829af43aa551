// Package frontdoor has what the front doors share: what they do before they are set up, and how they tell who may
// reach them.
package frontdoor

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/frontend"
)

// Plugin serves a front door. While its block has no listen, it is installed but not set up, and does nothing.
func Plugin(impl frontend.Frontend) sdk.Plugin { return frontend.Plugin(listening{impl}) }

type listening struct{ frontend.Frontend }

// Unwrap returns the front door, whose other abilities are the plugin's (sdk.As).
func (d listening) Unwrap() any { return d.Frontend }

// Ready implements frontend.Readier.
func (d listening) Ready(ctx context.Context, host frontend.Host) error {
	r, ok := d.Frontend.(frontend.Readier)
	if !ok || len(sdk.Listeners()) == 0 {
		return nil
	}
	return r.Ready(ctx, host)
}

// Serve implements frontend.Frontend.
func (d listening) Serve(ctx context.Context, host frontend.Host) error {
	if len(sdk.Listeners()) == 0 {
		sdk.Logger().Info("nothing to do: the plugin's block has no listen")
		<-ctx.Done()
		return nil
	}
	return d.Frontend.Serve(ctx, host)
}

// Unanswered is the error of a call that the API did not answer. A refusal, such as for a policy that does not exist
// yet, is an answer: the front door serves, and its users are told.
func Unanswered(err error) error {
	if connect.IsWireError(err) && connect.CodeOf(err) != connect.CodeUnavailable {
		return nil
	}
	return err
}

// Local reports whether only this machine reaches a listener's address.
func Local(at net.Addr) bool {
	tcp, ok := at.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

// KnownHost reports whether a browser may have called a server by the host of its request: by an IP address, localhost
// or one of the names. A name that an attacker owns may resolve to this machine's address, and the browser then takes
// the attacker's scripts for the server's own (DNS rebinding). An attacker owns no IP address, and not localhost
// (RFC 6761, section 6.3).
func KnownHost(host string, names []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return strings.EqualFold(host, "localhost") ||
		slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, host) })
}
