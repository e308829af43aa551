package generator

import (
	"context"
	"net/netip"
	"testing"
)

// Where Consul's agent serves xDS is what its answer says: an address and port of this kind, or an error.
func FuzzAddress(f *testing.F) {
	for _, text := range []string{"127.0.0.1:8502", "https://[::1]:8503", "unix:///run/consul.sock", "http://127.0.0.1:0", "127.0.0.1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // names are not resolved
		s, err := parseAddress(ctx, text)
		if err != nil {
			return
		}
		if _, bad := netip.ParseAddr(s.Endpoint.Address); (s.Socket == "") == (bad != nil) {
			t.Errorf("%q is %+v", text, s)
		}
	})
}
