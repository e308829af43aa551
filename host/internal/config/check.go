package config

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// complete adds what dev mode has by itself and puts the blocks in order.
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
		a.Drivers = append(a.Drivers, *l.drivers[id])
	}
	for _, name := range slices.Sorted(maps.Keys(l.consuls)) {
		a.Consuls = append(a.Consuls, l.consuls[name].Consul)
	}
	if a.SecretsDir == "" {
		a.SecretsDir = filepath.Join(a.DataDir, "secrets")
	}
	l.completeCluster()
}

// check looks at the values that files, environment and flags share.
func (l *loader) check() {
	a := l.agent
	whole := func(key, format string, args ...any) {
		l.problems = append(l.problems, Problem{Text: key + ": " + fmt.Sprintf(format, args...)})
	}
	if err := CheckID(a.Name); err != nil {
		whole("name", "%v; set name in the configuration, or -name", err)
	}
	if err := CheckID(a.Datacenter); err != nil {
		whole("datacenter", "%v", err)
	}
	if _, err := netip.ParseAddr(a.BindAddr); err != nil {
		whole("bind_addr", "%q is not an IP address", a.BindAddr)
	}
	if a.HTTPPort < 0 || a.HTTPPort > 65535 {
		whole("ports: http", "a whole number from 0 to 65535 is required, not %d", a.HTTPPort)
	}
	for _, dir := range []string{a.DataDir, a.PluginDir} {
		if strings.HasPrefix(dir+"/", strings.TrimSuffix(a.SecretsDir, "/")+"/") {
			whole("secrets_dir", "%q would hide %q: a file system of its own is mounted there; choose another folder", a.SecretsDir, dir)
			break
		}
	}
	if a.MinDynamicPort > a.MaxDynamicPort {
		whole("ports: min_dynamic_port", "%d is above max_dynamic_port, which is %d", a.MinDynamicPort, a.MaxDynamicPort)
	}
	if !slices.Contains(logLevels, a.LogLevel) {
		whole("log_level", "%q is not one of %s", a.LogLevel, strings.Join(logLevels, ", "))
	}
	if len(a.Socket) > maxSocketPath {
		whole("socket", "%q is longer than a socket's path may be (%d bytes); choose a shorter one", a.Socket, maxSocketPath)
	}
	for _, c := range a.Consuls {
		if (c.CertFile == "") != (c.KeyFile == "") {
			l.problems.add(l.consuls[c.Name].at, "consul %q: cert_file: goes together with key_file; give both or none", c.Name)
		}
	}
	l.checkCluster()
	used := map[string]string{}
	for _, d := range a.Drivers {
		if err := CheckEndpoint(d.Endpoint); err != nil {
			l.problems.add(l.places[d.ID], "csi_driver %q: endpoint: %v", d.ID, err)
		}
		if other, taken := used[d.Endpoint]; taken {
			l.problems.add(l.places[d.ID], "csi_driver %q: endpoint: %q is that of csi_driver %q too", d.ID, d.Endpoint, other)
		}
		used[d.Endpoint] = d.ID
	}
}

// CheckEndpoint refuses what is not a CSI driver's endpoint: "unix://" and an
// absolute path that fits into a socket's address (CSI spec, CSI_ENDPOINT).
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
