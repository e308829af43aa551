// Package clustertest opens nodes of the ledger for tests: real raft and real files, in a temporary directory.
package clustertest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/memberlist"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/discovery"
)

// Deadline bounds what a cluster may need for anything: slow machines need long.
const Deadline = 3 * time.Minute

// Options configures a cluster.
type Options struct {
	// Autopilot of each server; nil: settings that give votes soon.
	Autopilot *claim.Autopilot
	// Key encrypts gossip; empty: it is in clear.
	Key string
	// Log is where the servers log; nil: nowhere.
	Log hclog.Logger
	// Expect is bootstrap_expect of the servers; 0: the number of servers at the beginning.
	Expect int
}

// Cluster is several servers in this process: real raft over TCP, real serf, on loopback, with ports from the
// kernel. It is formed only by bootstrap_expect.
type Cluster struct {
	opts Options
	net  *network
	dir  string
	all  []*Host
}

// Host is one server of a cluster. Between Stop and Start its Node is closed.
type Host struct {
	*cluster.Node
	Name      string
	Dir       string // of its ledger
	Discovery *discovery.Discovery

	c      *Cluster
	expect int
	up     bool
}

// Form starts n servers, server-1 to server-n, that form a cluster. They are stopped at the end of the test.
func Form(t testing.TB, n int, opts Options) *Cluster {
	t.Helper()
	c := Prepare(t, n, opts)
	for _, h := range c.all {
		h.Start(t)
	}
	c.WaitReady(t)
	return c
}

// Prepare is Form without starting the servers.
func Prepare(t testing.TB, n int, opts Options) *Cluster {
	t.Helper()
	if opts.Expect == 0 {
		opts.Expect = n
	}
	if opts.Autopilot == nil {
		a := claim.DefaultAutopilot()
		a.ServerStabilizationTime = 300 * time.Millisecond
		opts.Autopilot = &a
	}
	c := &Cluster{opts: opts, net: newNetwork(), dir: t.TempDir()}
	for i := range n {
		c.Add(t, fmt.Sprint("server-", i+1), opts.Expect)
	}
	return c
}

// Add adds a server with a bootstrap_expect. It is not started.
func (c *Cluster) Add(t testing.TB, name string, expect int) *Host {
	t.Helper()
	h := &Host{c: c, Name: name, Dir: filepath.Join(c.dir, name), expect: expect}
	c.all = append(c.all, h)
	t.Cleanup(func() { h.Stop(t) })
	return h
}

// Adopt adds a server with the ledger of a single server of the same name.
func (c *Cluster) Adopt(t testing.TB, name, dir string, expect int) *Host {
	t.Helper()
	h := c.Add(t, name, expect)
	h.Dir = dir
	return h
}

// Hosts returns all servers, including stopped ones.
func (c *Cluster) Hosts() []*Host { return c.all }

// Up returns the running servers.
func (c *Cluster) Up() []*Host {
	return slices.DeleteFunc(slices.Clone(c.all), func(h *Host) bool { return !h.up })
}

// Host returns a server by name.
func (c *Cluster) Host(t testing.TB, name string) *Host {
	t.Helper()
	for _, h := range c.all {
		if h.Name == name {
			return h
		}
	}
	t.Fatalf("there is no server %q", name)
	return nil
}

// Start starts a server, with new addresses.
func (h *Host) Start(t testing.TB) {
	t.Helper()
	if h.up {
		t.Fatalf("%s runs already", h.Name)
	}
	streams, err := h.c.net.listen(h.Name)
	if err != nil {
		t.Fatal(err)
	}
	var join []string
	for _, other := range h.c.Up() {
		join = append(join, other.Discovery.Addr())
	}
	h.Discovery, err = discovery.Open(discovery.Config{
		Self: discovery.Self{
			Name: h.Name, Role: discovery.Server, Datacenter: "dc1", RPC: streams.Addr().String(),
			Version: "test",
		},
		Bind: "127.0.0.1", RetryJoin: join, Memberlist: loopback(), Key: h.c.opts.Key,
		SnapshotFile: filepath.Join(h.c.dir, h.Name+".serf"), KeyringFile: filepath.Join(h.c.dir, h.Name+".keys"),
	})
	if err != nil {
		t.Fatal(errors.Join(err, streams.Close()))
	}
	h.Node, err = cluster.Open(t.Context(), cluster.Config{
		Dir: h.Dir, Name: h.Name, BootstrapExpect: h.expect, Streams: streams, Members: h.Discovery,
		Remote: h.c.Remote(h.Name), Autopilot: h.c.opts.Autopilot, Logger: h.c.opts.Log,
	})
	if err != nil {
		t.Fatal(errors.Join(err, h.Discovery.Close(), streams.Close()))
	}
	h.up = true
	h.c.net.add(h.Name, h.Node)
}

// Stop stops a server without announcing it to the others. It may be stopped already.
func (h *Host) Stop(t testing.TB) {
	t.Helper()
	if !h.up {
		return
	}
	h.up = false
	h.c.net.remove(h.Name)
	// Gossip is stopped first, as when the process ends: a server that is being closed does not answer.
	if err := errors.Join(h.Discovery.Close(), h.Close()); err != nil {
		t.Errorf("stop %s: %v", h.Name, err)
	}
}

// WaitReady waits until all running servers have caught up, and one leads.
func (c *Cluster) WaitReady(t testing.TB) {
	t.Helper()
	for _, h := range c.Up() {
		Eventually(t, h.Name+" is ready", func() bool {
			select {
			case <-h.Ready():
				return true
			default:
				return false
			}
		})
	}
	c.WaitLeader(t)
}

// Leader returns the present leader; nil: none.
func (c *Cluster) Leader() *Host {
	for _, h := range c.Up() {
		if h.Leader() {
			return h
		}
	}
	return nil
}

// WaitLeader waits until a server leads.
func (c *Cluster) WaitLeader(t testing.TB) *Host {
	t.Helper()
	var leader *Host
	Eventually(t, "a server leads", func() bool {
		leader = c.Leader()
		return leader != nil
	})
	return leader
}

// Follower returns a running server that does not lead.
func (c *Cluster) Follower(t testing.TB) *Host {
	t.Helper()
	leader := c.WaitLeader(t)
	for _, h := range c.Up() {
		if h != leader {
			return h
		}
	}
	t.Fatal("there is no server but the leader")
	return nil
}

// WaitVoters waits until the leader has exactly these servers as healthy voters.
func (c *Cluster) WaitVoters(t testing.TB, names ...string) {
	t.Helper()
	slices.Sort(names)
	Eventually(t, fmt.Sprintf("the voters are %v", names), func() bool {
		leader := c.Leader()
		if leader == nil {
			return false
		}
		peers, err := leader.Peers(t.Context())
		var voters []string
		for _, p := range peers {
			if p.Voter && p.Healthy {
				voters = append(voters, p.ID)
			}
		}
		return err == nil && slices.Equal(voters, names) && len(peers) == len(names)
	})
}

// Partition disconnects servers from all others and from clients; the disconnected ones still reach each other.
// Gossip is not affected.
func (c *Cluster) Partition(names ...string) { c.net.cut(names) }

// Heal ends all partitions.
func (c *Cluster) Heal() { c.net.cut(nil) }

// Client returns the client of an agent without a ledger.
func (c *Cluster) Client() cluster.Ledger { return c.Remote("client") }

// Remote returns the remote of the agent with a name.
func (c *Cluster) Remote(from string) cluster.Ledger { return &remote{c.net, from} }

// Eventually polls until ok, or fails the test after Deadline.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for late := time.Now().Add(Deadline); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("it did not come to this: %s", what)
		}
	}
}

// loopback returns timings of gossip for one machine under load.
func loopback() *memberlist.Config {
	c := memberlist.DefaultLocalConfig()
	c.ProbeInterval, c.ProbeTimeout = 500*time.Millisecond, 300*time.Millisecond
	c.GossipInterval = 20 * time.Millisecond
	c.PushPullInterval = 2 * time.Second
	c.TCPTimeout = time.Second
	return c
}

// startTimeout bounds how long a node may take to lead.
const startTimeout = time.Minute

// Server is one node that can be restarted in place.
type Server struct {
	*cluster.Node
	cfg cluster.Config
}

// Start opens a cluster of one in a temporary directory and waits until it can be
// used. It is closed at the end of the test.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartWith(t, cluster.Config{})
}

// StartWith is Start with some fields of the configuration set; the others get
// what a single server needs.
func StartWith(t testing.TB, cfg cluster.Config) *Server {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	if cfg.Name == "" {
		cfg.Name = "server-1"
	}
	if cfg.BootstrapExpect == 0 {
		cfg.BootstrapExpect = 1
	}
	s := &Server{cfg: cfg}
	s.open(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the ledger: %v", err)
		}
	})
	return s
}

// Restart closes the node and opens it again.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("close the ledger: %v", err)
	}
	s.open(t)
}

func (s *Server) open(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	node, err := cluster.Open(ctx, s.cfg)
	if err != nil {
		t.Fatalf("open the ledger: %v", err)
	}
	s.Node = node
	if err := node.WaitReady(ctx); err != nil {
		t.Fatalf("wait for the ledger: %v", err)
	}
}
