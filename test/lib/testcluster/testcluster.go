// Package testcluster runs clusters of real agents for tests: each host is a process with its own directory and
// network, certificates made by the program itself, encrypted gossip, and volumes that all hosts can reach.
// Clusters form by bootstrap_expect, as in production. It needs root.
package testcluster

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testnet"
)

// Options describe a cluster.
type Options struct {
	Servers, Nodes int
	// Seed decides which packets a faulty network loses.
	Seed uint64
	// Config is HCL for every host; ServerConfig is added to the server block of servers.
	Config, ServerConfig string
	// ServerConfigOf is added to ServerConfig, by the server's name; nil: nothing.
	ServerConfigOf func(name string) string
	// DriverArgs are more flags of the hosts' driver (test/lib/shareddriver).
	DriverArgs []string
	// Topology is the location that a host's driver reports, such as rack=R1; nil: none.
	Topology func(host string) string
	// Plugins besides csi-bridge, by name.
	Plugins []string
}

// Cluster is a set of hosts; the servers come first.
type Cluster struct {
	t       testing.TB
	opts    Options
	Net     *testnet.TestNet
	Hosts   []*testhost.Host
	Dir     string // for the certificates and the gossip key
	Volumes string // where the hosts' driver, "shared", keeps its volumes
	driver  string
	pannier string
}

// The ports are the same on each host, because each has its own network.
const (
	RPCPort  = 7421
	SerfPort = 7422
)

// New prepares the hosts server-1…, node-1…; Start starts them.
func New(t testing.TB, opts Options) *Cluster {
	t.Helper()
	testbin.RequireRoot(t, "several hosts in networks of their own")
	dir := t.TempDir()
	c := &Cluster{
		t: t, opts: opts, Net: testnet.New(t, opts.Seed), Dir: dir, Volumes: filepath.Join(dir, "volumes"),
		driver: testbin.Build(t, "test/lib/shareddriver"), pannier: testbin.Pannier(t),
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	if err := os.WriteFile(c.path("gossip.key"), []byte(base64.StdEncoding.EncodeToString(key)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.pannierCmd("tls", "ca", "create", "-dir", dir)
	for n := range opts.Servers {
		c.Add(fmt.Sprintf("server-%d", n+1), true)
	}
	for n := range opts.Nodes {
		c.Add(fmt.Sprintf("node-%d", n+1), false)
	}
	return c
}

// Start makes a cluster, starts all hosts at once and waits until each is ready and its drivers are healthy.
func Start(t testing.TB, opts Options) *Cluster {
	t.Helper()
	c := New(t, opts)
	for _, h := range c.Hosts {
		h.Begin()
	}
	for _, h := range c.Hosts {
		h.AwaitReady()
		h.AwaitDrivers()
	}
	return c
}

func (c *Cluster) path(name string) string { return filepath.Join(c.Dir, name) }

func (c *Cluster) pannierCmd(args ...string) {
	c.t.Helper()
	if out, err := exec.Command(c.pannier, args...).CombinedOutput(); err != nil {
		c.t.Fatalf("pannier %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Add prepares another host without starting it.
func (c *Cluster) Add(name string, server bool) *testhost.Host {
	c.t.Helper()
	role, block := "node", "enabled = false"
	if server {
		role, block = "server", c.serverBlock(name)
	}
	c.Cert(role, name)
	h := c.prepare(name, c.Net.Host(name), role, block)
	c.Hosts = append(c.Hosts, h)
	return h
}

func (c *Cluster) serverBlock(name string) string {
	// The election timeout is short, since most tests wait for a leader.
	block := fmt.Sprintf("bootstrap_expect = %d\nelection_timeout = \"300ms\"\n%s", c.opts.Servers, c.opts.ServerConfig)
	if c.opts.ServerConfigOf != nil {
		block += "\n" + c.opts.ServerConfigOf(name)
	}
	return block
}

// Twin prepares a second machine with the name and certificate of a host, a network of its own, and an empty data
// directory. It is not in Hosts.
func (c *Cluster) Twin(of *testhost.Host) *testhost.Host {
	c.t.Helper()
	role, block := "node", "enabled = false"
	if strings.HasPrefix(of.Name, "server-") {
		role, block = "server", c.serverBlock(of.Name)
	}
	return c.prepare(of.Name, c.Net.Host(of.Name+"-twin"), role, block)
}

// prepare makes the directory and the configuration of a machine.
func (c *Cluster) prepare(name string, net *testnet.Host, role, block string) *testhost.Host {
	c.t.Helper()
	var join []string
	for _, h := range c.Hosts {
		if strings.HasPrefix(h.Name, "server-") {
			join = append(join, fmt.Sprintf("%q", h.Net.Addr))
		}
	}
	if role == "server" {
		join = append(join, fmt.Sprintf("%q", net.Addr))
	}
	driver := []string{c.driver, "-endpoint", "${endpoint}", "-node-id", "${node.name}", "-dir", c.Volumes}
	driver = append(driver, c.opts.DriverArgs...)
	if c.opts.Topology != nil {
		driver = append(driver, "-topology", c.opts.Topology(name))
	}
	command, err := json.Marshal(driver)
	if err != nil {
		c.t.Fatal(err)
	}
	h := testhost.NewNamed(c.t, name, fmt.Sprintf(`
bind_addr = %q
ports {
  http = 7420
  rpc  = %d
  serf = %d
}
server {
  %s
}
retry_join   = [%s]
encrypt_file = %q
tls {
  ca_file   = %q
  cert_file = %q
  key_file  = %q
}
csi_driver "shared" {
  command     = %s
  settle_time = "1s"
}
%s`, net.Addr, RPCPort, SerfPort, block, strings.Join(join, ", "), c.path("gossip.key"), c.path("ca.pem"),
		c.path("dc1-"+role+"-"+name+".pem"), c.path("dc1-"+role+"-"+name+
			"-key.pem"), command, c.opts.Config), c.opts.Plugins...)
	h.Net = net
	return h
}

// Cert makes a certificate, in dc1-ROLE-NAME.pem and dc1-ROLE-NAME-key.pem of Dir.
func (c *Cluster) Cert(role, name string, more ...string) {
	c.t.Helper()
	c.pannierCmd(append([]string{
		"tls", "cert", "create", "-" +
			role, "-name", name, "-dir", c.Dir, "-ca", c.path("ca.pem"), "-ca-key", c.path("ca-key.pem"),
	}, more...)...)
}

// Host returns a host by name.
func (c *Cluster) Host(name string) *testhost.Host {
	c.t.Helper()
	n := slices.IndexFunc(c.Hosts, func(h *testhost.Host) bool { return h.Name == name })
	if n < 0 {
		c.t.Fatalf("no host %q", name)
	}
	return c.Hosts[n]
}

// Servers returns the hosts that keep the ledger.
func (c *Cluster) Servers() []*testhost.Host {
	return slices.DeleteFunc(slices.Clone(c.Hosts),
		func(h *testhost.Host) bool { return !strings.HasPrefix(h.Name, "server-") })
}

// Leader waits until one of the running hosts leads, and returns it.
func (c *Cluster) Leader() *testhost.Host {
	c.t.Helper()
	var leader *testhost.Host
	c.Hosts[0].Eventually("there is a leader", func() error {
		for _, h := range c.Servers() {
			if !h.Alive() {
				continue
			}
			if s, err := h.Status(); err == nil && s.GetLeader() {
				leader = h
				return nil
			}
		}
		return errors.New("nobody leads")
	})
	return leader
}

// Volume registers a volume of the shared driver under a name, through a host.
func (c *Cluster) Volume(through *testhost.Host, id, access string) {
	c.t.Helper()
	spec := through.Write(id+".volume.hcl", fmt.Sprintf(`
id        = %q
type      = "csi"
plugin_id = "shared"
capacity_min = "1MiB"
capability {
  access_mode     = %q
  attachment_mode = "file-system"
}
`, id, access))
	through.Run("volume", "create", spec)
}

// Workload writes the spec of a workload that uses volumes of the same names.
func (c *Cluster) Workload(on *testhost.Host, id string, volumes ...string) (spec string) {
	c.t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "workload %q {\n", id)
	for _, v := range volumes {
		fmt.Fprintf(&text, "  volume %q {\n    source = %q\n    destination = \"/srv/%s\"\n  }\n", v, v, v)
	}
	text.WriteString("}\n")
	return on.Write(id+".workload.hcl", text.String())
}

// AwaitStarted starts a workload that uses volumes of the same names, retrying until that succeeds.
func (c *Cluster) AwaitStarted(on *testhost.Host, id string, volumes ...string) {
	c.t.Helper()
	spec := c.Workload(on, id, volumes...)
	on.Eventually("workload "+id+" is started", func() error {
		if r := on.Try("workload", "start", spec); r.Code != 0 {
			return errors.New(r.Stdout + r.Stderr)
		}
		return nil
	})
}

// Data returns the directory with a volume's data in the storage.
func (c *Cluster) Data(through *testhost.Host, volume string) string {
	c.t.Helper()
	return filepath.Join(c.Volumes, through.Volume(volume).GetSpec().GetExternalId(), "data")
}

// Hold prevents the drivers of all hosts from changing anything, until release or the end of the test.
func (c *Cluster) Hold(t testing.TB) (release func()) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(c.Volumes, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	release = func() { _ = f.Close() } // after an earlier call it is closed already
	t.Cleanup(release)
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return release
}

// Stage is one part of a cluster's test. If it fails, the later ones would be meaningless and are not run.
func (c *Cluster) Stage(t *testing.T, name string, do func(t *testing.T)) {
	t.Helper()
	if !t.Run(name, func(t *testing.T) {
		for _, h := range c.Hosts {
			h.Use(t)
		}
		do(t)
	}) {
		t.FailNow()
	}
}
