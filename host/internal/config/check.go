package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
)

// complete adds dev mode's settings and sorts the blocks.
func (l *loader) complete() {
	a := l.agent
	const id = "local"
	if l.src.Dev && l.drivers[id] == nil {
		d := l.driver(id)
		d.Command = []string{
			firstThatIs(filepath.Join(l.src.BinDir, "csi-local"), systemCSILocal),
			"-endpoint", d.Endpoint, "-node-id", a.Name, "-data-dir", filepath.Join(a.DataDir, "volumes"),
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.plugins)) {
		a.Plugins = append(a.Plugins, *l.plugins[name])
	}
	for _, id := range slices.Sorted(maps.Keys(l.drivers)) {
		d := l.drivers[id]
		if d.Controller != nil {
			d.Type, d.Controller.HealthTimeout, d.Controller.Plugin = "node", d.HealthTimeout, d.Plugin
		}
		a.Drivers = append(a.Drivers, *d)
	}
	for _, name := range slices.Sorted(maps.Keys(l.consuls)) {
		a.Consuls = append(a.Consuls, *l.consuls[name])
	}
	if a.SecretsDir == "" {
		a.SecretsDir = filepath.Join(a.DataDir, "secrets")
	}
	l.completeCluster()
}

// check validates the values that files, environment and flags share.
func (l *loader) check() {
	a := l.agent
	if err := claim.CheckID(a.Name); err != nil {
		l.fail("name", "%v; set name in the configuration, or -name", err)
	}
	if err := claim.CheckID(a.Datacenter); err != nil {
		l.fail("datacenter", "%v", err)
	}
	if _, err := netip.ParseAddr(a.BindAddr); err != nil {
		l.fail("bind_addr", "%q is not an IP address", a.BindAddr)
	}
	if a.HTTPPort < 0 || a.HTTPPort > 65535 {
		l.fail("ports: http", "a whole number from 0 to 65535 is required, not %d", a.HTTPPort)
	}
	for _, dir := range []string{a.DataDir, a.PluginDir} {
		if strings.HasPrefix(dir+"/", strings.TrimSuffix(a.SecretsDir, "/")+"/") {
			l.fail("secrets_dir", "%q would hide %q: a file system of its own is mounted there; choose another folder",
				a.SecretsDir, dir)
			break
		}
	}
	if a.MinDynamicPort > a.MaxDynamicPort {
		l.fail("ports: min_dynamic_port", "%d is above max_dynamic_port, which is %d", a.MinDynamicPort, a.MaxDynamicPort)
	}
	if !slices.Contains(logLevels, a.LogLevel) {
		l.fail("log_level", "%q is not one of %s", a.LogLevel, strings.Join(logLevels, ", "))
	}
	if len(a.CredentialsSocket()) > maxSocketPath { // the longer one of the two
		l.fail("socket", "%q is longer than a socket's path may be (%d bytes); choose a shorter one", a.Socket,
			maxSocketPath-len(a.CredentialsSocket())+len(a.Socket))
	}
	for _, c := range a.Consuls {
		if (c.CertFile == "") != (c.KeyFile == "") {
			l.failAt([]string{c.Block() + ": cert_file", "consul: cert_file", c.Block(), "consul"},
				"%s: cert_file: goes together with key_file; give both or none", c.Block())
		}
	}
	l.checkCluster()
	l.checkFrontends()
	used := map[string]string{}
	check := func(block, endpoint string) {
		fail := func(format string, args ...any) {
			l.failAt([]string{block + ": endpoint", block}, "%s: endpoint: %s", block, fmt.Sprintf(format, args...))
		}
		if err := CheckEndpoint(endpoint); err != nil {
			fail("%v", err)
		}
		if other, taken := used[endpoint]; taken {
			fail("%q is that of %s too", endpoint, other)
		}
		used[endpoint] = block
	}
	for _, d := range a.Drivers {
		block := fmt.Sprintf("csi_driver %q", d.ID)
		check(block, d.Endpoint)
		if d.Controller != nil {
			check(block+": controller", d.Controller.Endpoint)
		}
	}
}

// CheckEndpoint returns an error unless endpoint is "unix://" and an absolute path that fits into a socket's address
// (CSI spec, CSI_ENDPOINT).
func CheckEndpoint(endpoint string) error {
	socket, isUnix := strings.CutPrefix(endpoint, "unix://")
	if !isUnix || !strings.HasPrefix(socket, "/") {
		return fmt.Errorf("%q is not unix:// and an absolute path", endpoint)
	}
	if len(socket) > maxSocketPath {
		return fmt.Errorf("%q is longer than a socket's path may be (%d bytes); choose a shorter one", socket, maxSocketPath)
	}
	return nil
}

// completeCluster fills in defaults that depend on other values.
func (l *loader) completeCluster() {
	a := l.agent
	if a.TLS != nil && !l.has("acl: socket_root") {
		a.ACL.SocketRoot = false
	}
	for i, text := range a.RetryJoin {
		address, ok := joinAddress(text)
		if !ok {
			l.fail("retry_join", "%q is not HOST or HOST:PORT", text)
			continue
		}
		a.RetryJoin[i] = address
	}
}

// checkCluster validates the settings of clusters, and settings that exclude one another.
func (l *loader) checkCluster() {
	a := l.agent
	if err := claim.CheckLiveness(a.Server.Liveness); err != nil {
		l.failAt([]string{"server: stop_margin", "server: stop_after", "server: heartbeat_ttl"}, "server: %v", err)
	}
	if a.AdvertiseAddr != "" {
		if ip, err := netip.ParseAddr(a.AdvertiseAddr); err != nil || ip.IsUnspecified() {
			l.fail("advertise_addr", "%q is not the IP address of one host", a.AdvertiseAddr)
		}
	}
	if n := a.Server.BootstrapExpect; n < 0 || n > claim.MaxServers {
		l.fail("server: bootstrap_expect", "a whole number from 0 to %d is required, not %d", claim.MaxServers, n)
	}
	if a.TLS == nil {
		l.checkAlone()
		return
	}
	l.checkTogether()
}

// checkAlone refuses settings that only mean something in a cluster, on a host without TLS.
func (l *loader) checkAlone() {
	a := l.agent
	for _, c := range []struct {
		key    string
		wanted bool
	}{
		{"server: bootstrap_expect", a.Server.BootstrapExpect != 1},
		{"server: enabled", !a.Server.Enabled},
		{"retry_join", len(a.RetryJoin) > 0},
		{"advertise_addr", a.AdvertiseAddr != ""},
		{"encrypt", a.Gossip.Key != ""},
		{"encrypt_file", a.Gossip.File != ""},
		{"autopilot", l.has("autopilot")},
	} {
		if c.wanted {
			l.fail(c.key,
				"other agents are reached over TLS only: add a tls block with ca_file, cert_file and key_file (pannier "+
					"tls ca create and pannier tls cert create make them), or leave this out")
		}
	}
}

// checkTogether refuses settings with which a host with TLS could not be reached, or not reach others.
func (l *loader) checkTogether() {
	a := l.agent
	for _, file := range []struct{ key, path string }{
		{"ca_file", a.TLS.CA}, {"cert_file", a.TLS.Cert}, {"key_file", a.TLS.Key},
	} {
		if file.path == "" {
			l.failAt([]string{"tls"}, "tls: %s: is required: pannier cluster init or join writes the block; pannier tls ca create and pannier tls cert create make "+
				"the files by hand",
				file.key)
		}
	}
	if a.Gossip == (KeySource{}) {
		l.failAt([]string{"tls"}, "encrypt_file: is required with a tls block, for without a key anyone can make hosts look "+
			"dead: %s >gossip.key, and give that file, 0600, to all hosts", howToMakeKey)
	}
	if strings.Contains(a.Name, "_") {
		l.fail("name", "%q may not have _ in a cluster; write - in its place", a.Name)
	}
	if a.ACL.SocketRoot && l.has("acl: socket_root") {
		l.fail("acl: socket_root", "root of one host would rule the whole cluster; leave it out, and use a token")
	}
	if !a.Server.Enabled {
		if len(a.RetryJoin) == 0 {
			l.failAt([]string{"server: enabled"},
				"retry_join: is required where server { enabled = false }: name one server of the cluster at least")
		}
		if a.TLS.CAKey != "" {
			l.failAt([]string{"tls"}, "tls: ca_key_file: is of servers only: who has that file can be every host")
		}
		if a.Server.BootstrapExpect != 1 {
			l.fail("server: bootstrap_expect", "is of servers only; leave it out where enabled = false")
		}
	}
	if a.Server.Enabled && a.Server.BootstrapExpect == 0 && len(a.RetryJoin) == 0 {
		l.failAt([]string{"server: bootstrap_expect"},
			"retry_join: is required where bootstrap_expect = 0: such a server waits until the others add it; name one of them")
	}
	l.checkAddresses()
}

// checkAddresses refuses addresses that cannot be dialled, and equal ports.
func (l *loader) checkAddresses() {
	a := l.agent
	if bind, err := netip.ParseAddr(a.BindAddr); err == nil && a.AdvertiseAddr == "" {
		switch {
		case bind.IsUnspecified():
			l.fail("bind_addr", "%q is no address that other agents can dial: set advertise_addr to that of this host, or "+
				"bind_addr itself", a.BindAddr)
		case bind.IsLoopback():
			for _, address := range a.RetryJoin {
				host, _, _ := net.SplitHostPort(address)
				if other, err := netip.ParseAddr(host); err == nil && !other.IsLoopback() {
					l.fail("retry_join", "%s is on another host, and bind_addr is %s, which only this one can dial: set bind_addr "+
						"to an address of this host", address, a.BindAddr)
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
			l.failAt([]string{"ports"}, "ports: %s: %d is that of %s too", port.name, port.number, other)
		}
		used[port.number] = port.name
	}
}
