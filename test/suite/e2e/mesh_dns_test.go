package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/check"
)

// TestMeshDNS looks up a service by the names of docs/consul.md, with the ACL token that the page names.
func TestMeshDNS(t *testing.T) {
	t.Parallel()
	m := newMesh(t, minted, "")
	m.open()
	m.Run("workload", "start", m.meshWorkload("db", `
  service "db" {
    port    = 9000
    address = "127.0.0.2"
    tags    = ["primary"]
    check {
      type           = "tcp"
      port           = 1
      interval       = "1h"
      initial_status = "passing"
    }
    connect {
      sidecar_service {
        port                      = 9001
        disable_default_tcp_check = true
      }
    }
  }`))
	dns := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", fmt.Sprintf("127.0.0.1:%d", m.consul.Servers[0].Ports.DNS))
	}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if got, err := dns.LookupHost(ctx, "db.service.consul."); err == nil {
		t.Errorf("without a token the answer is %q", got)
	}
	m.consul.Policy(t, "dns", `service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`)
	_, err := m.consul.Client(m.consul.Management).Agent().UpdateDNSToken(m.consul.Token(t, "dns"), nil)
	check.NoError(t, err)
	for name, want := range map[string]string{
		"db.service.consul.": "127.0.0.2", "primary.db.service.consul.": "127.0.0.2", "db.connect.consul.": "127.0.0.2",
	} {
		m.Eventually(name, func() error {
			got, err := dns.LookupHost(ctx, name)
			if err == nil && fmt.Sprint(got) != "["+want+"]" {
				err = fmt.Errorf("the answer is %q", got)
			}
			return err
		})
	}
	for name, want := range map[string]uint16{"db.service.consul.": 9000, "db.connect.consul.": 9001} {
		_, got, err := dns.LookupSRV(ctx, "", "", name)
		if err != nil || len(got) != 1 || got[0].Port != want {
			t.Errorf("the ports of %s are %+v, %v", name, got, err)
		}
	}
	virtual, err := dns.LookupHost(ctx, "db.virtual.consul.")
	if err != nil || len(virtual) != 1 || !netip.MustParsePrefix("240.0.0.0/4").Contains(netip.MustParseAddr(virtual[0])) {
		t.Errorf("the virtual address is %q, %v", virtual, err)
	}
	m.Run("workload", "stop", "db")
	if got, err := dns.LookupHost(ctx, "db.service.consul."); err == nil {
		t.Errorf("after the stop the answer is %q", got)
	}
}
