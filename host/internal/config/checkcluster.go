package config

import (
	"net"
	"net/netip"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/lease"
)

// completeCluster fills in what follows from the rest.
func (l *loader) completeCluster() {
	a, at := l.agent, l.cluster
	if a.TLS != nil && at.socketRoot == (hcl.Range{}) {
		a.ACL.SocketRoot = false
	}
	for i, text := range a.RetryJoin {
		address, ok := joinAddress(text)
		if !ok {
			l.problems.add(at.join, "retry_join: %q is not HOST or HOST:PORT", text)
			continue
		}
		a.RetryJoin[i] = address
	}
}

// checkCluster looks at what hosts need to be a cluster, and refuses what cannot work
// together.
func (l *loader) checkCluster() {
	a, at := l.agent, l.cluster
	if err := lease.Check(a.Server.Liveness); err != nil {
		l.problems.add(at.liveness, "server: %v", err)
	}
	if a.AdvertiseAddr != "" {
		if ip, err := netip.ParseAddr(a.AdvertiseAddr); err != nil || ip.IsUnspecified() {
			l.problems.add(at.advertise, "advertise_addr: %q is not the IP address of one host", a.AdvertiseAddr)
		}
	}
	if n := a.Server.BootstrapExpect; n < 0 || n > claim.MaxServers {
		l.problems.add(at.expect, "server: bootstrap_expect: a whole number from 0 to %d is required, not %d", claim.MaxServers, n)
	}
	if a.TLS == nil {
		l.checkAlone()
		return
	}
	l.checkTogether()
}

// checkAlone refuses on a host without TLS what only others give a meaning.
func (l *loader) checkAlone() {
	a, at := l.agent, l.cluster
	const why = "other agents are reached over TLS only: add a tls block with ca_file, cert_file and key_file (pannier tls ca create and pannier tls cert create make them), or leave this out"
	needs := func(wanted bool, at hcl.Range, key string) {
		if wanted {
			l.problems.add(at, "%s: %s", key, why)
		}
	}
	needs(a.Server.BootstrapExpect != 1, at.expect, "server: bootstrap_expect")
	needs(!a.Server.Enabled, at.server, "server: enabled")
	needs(len(a.RetryJoin) > 0, at.join, "retry_join")
	needs(a.AdvertiseAddr != "", at.advertise, "advertise_addr")
	needs(a.Gossip != KeySource{}, at.encrypt, "encrypt")
	needs(at.autopilot != hcl.Range{}, at.autopilot, "autopilot")
}

// checkTogether refuses what keeps a host with TLS from being reached, or from others.
func (l *loader) checkTogether() {
	a, at := l.agent, l.cluster
	for _, file := range []struct{ key, path string }{
		{"ca_file", a.TLS.CAFile}, {"cert_file", a.TLS.CertFile}, {"key_file", a.TLS.KeyFile},
	} {
		if file.path == "" {
			l.problems.add(at.tls, "tls: %s: is required: pannier tls ca create and pannier tls cert create make these files", file.key)
		}
	}
	if strings.Contains(a.Name, "_") {
		l.problems.add(at.name, "name: %q may not have _ in a cluster; write - in its place", a.Name)
	}
	if a.ACL.SocketRoot && at.socketRoot != (hcl.Range{}) {
		l.problems.add(at.socketRoot, "acl: socket_root: root of one host would rule the whole cluster; leave it out, and use a token")
	}
	if !a.Server.Enabled {
		if len(a.RetryJoin) == 0 {
			l.problems.add(at.server, "retry_join: is required where server { enabled = false }: name one server of the cluster at least")
		}
		if a.Server.BootstrapExpect != 1 {
			l.problems.add(at.expect, "server: bootstrap_expect: is of servers only; leave it out where enabled = false")
		}
	}
	if a.Server.Enabled && a.Server.BootstrapExpect == 0 && len(a.RetryJoin) == 0 {
		l.problems.add(at.expect, "retry_join: is required where bootstrap_expect = 0: such a server waits until the others add it; name one of them")
	}
	l.checkAddresses()
}

// checkAddresses refuses addresses that nobody can dial, and two ports that are one.
func (l *loader) checkAddresses() {
	a, at := l.agent, l.cluster
	if bind, err := netip.ParseAddr(a.BindAddr); err == nil && a.AdvertiseAddr == "" {
		switch {
		case bind.IsUnspecified():
			l.problems.add(at.bind, "bind_addr: %q is no address that other agents can dial: set advertise_addr to that of this host, or bind_addr itself", a.BindAddr)
		case bind.IsLoopback():
			for _, address := range a.RetryJoin {
				host, _, _ := net.SplitHostPort(address)
				if other, err := netip.ParseAddr(host); err == nil && !other.IsLoopback() {
					l.problems.add(at.join, "retry_join: %s is on another host, and bind_addr is %s, which only this one can dial: set bind_addr to an address of this host", address, a.BindAddr)
					break
				}
			}
		}
	}
	used := map[int]string{}
	for _, port := range []struct {
		name   string
		number int
	}{{"http", a.HTTPPort}, {"rpc", a.RPCPort}, {"serf", a.SerfPort}} {
		if other := used[port.number]; other != "" && port.number != 0 {
			l.problems.add(at.ports, "ports: %s: %d is that of %s too", port.name, port.number, other)
		}
		used[port.number] = port.name
	}
}
