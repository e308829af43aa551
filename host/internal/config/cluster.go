package config

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"

	"github.com/pannier/pannier/cluster/claim"
)

// TLS has the paths of an agent's certificate, in PEM; all three are absolute.
type TLS struct {
	// CAFile has the certificates of the cluster's authorities.
	CAFile string
	// CertFile and KeyFile are this host's.
	CertFile, KeyFile string
}

// ACL configures access control.
type ACL struct {
	// Enabled denies everything that no policy allows.
	Enabled bool
	// SocketRoot allows root everything over the unix socket. It is never set with TLS.
	SocketRoot bool
}

// Autopilot has the settings that apply until an operator changes them in the ledger.
type Autopilot struct {
	// CleanupDeadServers removes a failed server once another one has replaced it.
	CleanupDeadServers bool
	// LastContactThreshold is how long a healthy server may be silent.
	LastContactThreshold time.Duration
	// ServerStabilizationTime is how long a new server is healthy before it votes.
	ServerStabilizationTime time.Duration
	// MinQuorum is the number of voters that the removal of dead servers must leave; 0: as many as formed the
	// cluster.
	MinQuorum int
}

// defaultAutopilot has the defaults of Consul and Nomad.
var defaultAutopilot = Autopilot{
	CleanupDeadServers: true, LastContactThreshold: 200 * time.Millisecond, ServerStabilizationTime: 10 * time.Second,
}

var (
	serverFields    = fields{attrs: []string{"enabled", "bootstrap_expect", "heartbeat_ttl", "stop_after", "stop_margin"}}
	tlsFields       = fields{attrs: []string{"ca_file", "cert_file", "key_file"}}
	aclFields       = fields{attrs: []string{"enabled", "socket_root"}}
	auditFields     = fields{attrs: []string{"path"}}
	tracesFields    = fields{attrs: []string{"endpoint"}}
	metricsFields   = fields{attrs: []string{"volumes"}}
	autopilotFields = fields{attrs: []string{
		"cleanup_dead_servers", "last_contact_threshold",
		"server_stabilization_time", "min_quorum",
	}}
	encryptionFields = fields{attrs: []string{"key_file"}}
)

// clusterPlaces are the places of the last values of some settings, for problems that show only after all files are
// read.
type clusterPlaces struct {
	name, bind, advertise, join, encrypt, expect, server, liveness, tls, socketRoot, ports, autopilot hcl.Range
}

// note records where a field was written.
func (s *section) note(dst *hcl.Range, names ...string) {
	for _, name := range names {
		if s.has(name) {
			*dst = s.at(name)
		}
	}
}

// clusterBlocks reads the settings of clusters. Relative paths start at dir.
func (l *loader) clusterBlocks(s *section, dir string) {
	a, at := l.agent, &l.cluster
	s.note(&at.name, "name")
	s.note(&at.bind, "bind_addr")
	s.note(&at.advertise, "advertise_addr")
	s.note(&at.join, "retry_join")
	s.note(&at.encrypt, "encrypt", "encrypt_file")
	s.str("advertise_addr", &a.AdvertiseAddr)
	s.strings("retry_join", &a.RetryJoin)
	s.gossipKey(dir, &a.Gossip)
	l.server(s)
	l.tls(s, dir)
	l.acl(s)
	if block := s.one("audit"); block != nil {
		s.inner(block, auditFields).file("path", dir, &a.AuditPath)
	}
	if block := s.one("traces"); block != nil {
		s.inner(block, tracesFields).httpURL("endpoint", &a.TracesEndpoint)
	}
	if block := s.one("metrics"); block != nil {
		s.inner(block, metricsFields).boolean("volumes", &a.VolumeMetrics)
	}
	l.autopilot(s)
	if block := s.one("ledger_encryption"); block != nil {
		in := s.inner(block, encryptionFields)
		in.file("key_file", dir, &a.Ledger.File)
		if !in.has("key_file") {
			in.fail("key_file", "is required: %s", howToMakeKey)
		}
	}
}

func (l *loader) server(s *section) {
	block := s.one("server")
	if block == nil {
		return
	}
	in, server := s.inner(block, serverFields), &l.agent.Server
	in.boolean("enabled", &server.Enabled)
	in.servers("bootstrap_expect", 0, &server.BootstrapExpect)
	in.duration("heartbeat_ttl", &server.Liveness.HeartbeatTTL)
	in.duration("stop_after", &server.Liveness.StopAfter)
	in.duration("stop_margin", &server.Liveness.Margin)
	in.note(&l.cluster.server, "enabled")
	in.note(&l.cluster.expect, "bootstrap_expect")
	in.note(&l.cluster.liveness, "heartbeat_ttl", "stop_after", "stop_margin")
}

func (s *section) servers(name string, lowest int64, dst *int) {
	n := int64(*dst)
	s.integer(name, lowest, claim.MaxServers, &n)
	*dst = int(n)
}

func (l *loader) tls(s *section, dir string) {
	block := s.one("tls")
	if block == nil {
		return
	}
	if l.agent.TLS == nil {
		l.agent.TLS = &TLS{}
	}
	in := s.inner(block, tlsFields)
	in.file("ca_file", dir, &l.agent.TLS.CAFile)
	in.file("cert_file", dir, &l.agent.TLS.CertFile)
	in.file("key_file", dir, &l.agent.TLS.KeyFile)
	l.cluster.tls = block.DefRange
}

func (l *loader) acl(s *section) {
	block := s.one("acl")
	if block == nil {
		return
	}
	in := s.inner(block, aclFields)
	in.boolean("enabled", &l.agent.ACL.Enabled)
	in.boolean("socket_root", &l.agent.ACL.SocketRoot)
	in.note(&l.cluster.socketRoot, "socket_root")
}

func (l *loader) autopilot(s *section) {
	block := s.one("autopilot")
	if block == nil {
		return
	}
	in, auto := s.inner(block, autopilotFields), &l.agent.Autopilot
	in.boolean("cleanup_dead_servers", &auto.CleanupDeadServers)
	in.duration("last_contact_threshold", &auto.LastContactThreshold)
	in.duration("server_stabilization_time", &auto.ServerStabilizationTime)
	in.servers("min_quorum", 0, &auto.MinQuorum)
	l.cluster.autopilot = block.DefRange
}

// clusterFlags applies the settings from outside the files.
func (l *loader) clusterFlags(o Overrides) {
	a, at := l.agent, &l.cluster
	set(&a.Server.Enabled, o.Server)
	set(&a.Server.BootstrapExpect, o.BootstrapExpect)
	if o.Join != nil {
		a.RetryJoin, at.join = o.Join, hcl.Range{}
	}
	if o.Server != nil {
		at.server = hcl.Range{}
	}
	if o.BootstrapExpect != nil {
		at.expect = hcl.Range{}
	}
	if o.Name != nil {
		at.name = hcl.Range{}
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
