package config

import (
	"cmp"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/pki"
)

// ACL configures access control.
type ACL struct {
	// Enabled denies everything that no policy allows.
	Enabled bool
	// SocketRoot allows root everything over the unix socket. It is never set with TLS.
	SocketRoot bool
}

// defaultAutopilot has the defaults of Consul and Nomad.
func defaultAutopilot() claim.Autopilot {
	autopilot := claim.DefaultAutopilot()
	autopilot.LastContactThreshold = 200 * time.Millisecond
	return autopilot
}

// clusterBlocks reads the settings of clusters. Relative paths start at dir.
func (l *loader) clusterBlocks(s *section, dir string) {
	a, live, auto := l.agent, &l.agent.Server.Liveness, &l.agent.Autopilot
	s.read(keys{"advertise_addr": &a.AdvertiseAddr, "retry_join": &a.RetryJoin})
	readGossipKey(s, dir, &a.Gossip)
	s.block("server", keys{
		"enabled": &a.Server.Enabled, "bootstrap_expect": number(0, claim.MaxServers, &a.Server.BootstrapExpect),
		"election_timeout": electionTimeout(&a.Server.ElectionTimeout),
		"heartbeat_ttl":    &live.HeartbeatTTL, "stop_after": &live.StopAfter, "stop_margin": &live.Margin,
	})
	tls := cmp.Or(a.TLS, &pki.Files{})
	if s.block("tls", keys{
		"ca_file": file(dir, &tls.CA), "cert_file": file(dir, &tls.Cert), "key_file": file(dir, &tls.Key),
		"ca_key_file": file(dir, &tls.CAKey),
	}) != nil {
		a.TLS = tls
	}
	s.block("acl", keys{"enabled": &a.ACL.Enabled, "socket_root": &a.ACL.SocketRoot})
	s.block("audit", keys{"path": file(dir, &a.AuditPath)})
	s.block("traces", keys{"endpoint": func(s *section, name string) { s.httpURL(name, &a.TracesEndpoint) }})
	s.block("metrics", keys{"volumes": &a.VolumeMetrics})
	s.block("autopilot", keys{
		"cleanup_dead_servers": &auto.CleanupDeadServers, "last_contact_threshold": &auto.LastContactThreshold,
		"server_stabilization_time": &auto.ServerStabilizationTime, "min_quorum": number(0, claim.MaxServers,
			&auto.MinQuorum),
	})
	in := s.block("ledger_encryption", keys{"key_file": file(dir, &a.Ledger.File)})
	if in != nil && !in.has("key_file") {
		in.fail("key_file", "is required: %s", howToMakeKey)
	}
}

// electionTimeout reads how long servers wait for a leader. Until its end nobody can claim a volume.
func electionTimeout(dst *time.Duration) func(*section, string) {
	const shortest, longest = 50 * time.Millisecond, 10 * time.Second
	return func(s *section, name string) {
		s.duration(name, dst)
		if *dst != 0 && (*dst < shortest || *dst > longest) {
			s.fail(name, "%s to %s is required, not %s", shortest, longest, *dst)
		}
	}
}

// clusterFlags applies the settings from outside the files.
func (l *loader) clusterFlags(o Overrides) {
	set(&l.agent.Server.Enabled, o.Server)
	set(&l.agent.Server.BootstrapExpect, o.BootstrapExpect)
	if o.Join != nil {
		l.agent.RetryJoin = o.Join
	}
	for key, given := range map[string]bool{
		"retry_join": o.Join != nil, "server: enabled": o.Server != nil, "name": o.Name != nil,
		"server: bootstrap_expect": o.BootstrapExpect != nil,
	} {
		if given {
			delete(l.written, key)
		}
	}
}

// joinAddress adds the default port to an address to join; ok is false for an invalid one.
func joinAddress(text string) (address string, ok bool) {
	host, port, err := net.SplitHostPort(text)
	if err != nil { // a host or an IPv6 address without a port
		host, port = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"), strconv.Itoa(DefaultSerfPort)
		if _, err := netip.ParseAddr(host); err != nil && strings.Contains(host, ":") {
			return "", false
		}
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 || host == "" || strings.ContainsAny(host, " /\t\r\n@") {
		return "", false
	}
	return net.JoinHostPort(host, port), true
}
