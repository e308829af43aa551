package clusterbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/peer"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testhost"
)

// servers is the number of servers in a cluster.
const servers = 3

// gossipKey encrypts the gossip of all agents.
const gossipKey = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

// formed is a cluster of agent processes on loopback.
type formed struct {
	ca   pkitest.Authority
	all  []*server
	more string // additional HCL for each server
	// settings are more of their server block.
	settings string
}

type server struct {
	*testhost.Host
	rpc, serf int
}

// form starts three servers with default timings, unless settings of their server block say otherwise, and waits until
// they are ready.
func form(b testing.TB, more string, settings ...string) *formed {
	b.Helper()
	s := &formed{ca: pkitest.New(b), more: more, settings: strings.Join(settings, "\n  ")}
	ports := freePorts(b, 2*servers)
	for n := range servers {
		s.all = append(s.all, &server{rpc: ports[2*n], serf: ports[2*n+1]})
	}
	for n, h := range s.all {
		s.prepare(b, h, fmt.Sprint("server-", n+1))
	}
	for _, h := range s.all {
		h.Begin()
	}
	for _, h := range s.all {
		h.AwaitReady()
	}
	s.awaitVoters(b)
	return s
}

// add prepares another server without starting it.
func (s *formed) add(b testing.TB, name string) *server {
	b.Helper()
	ports := freePorts(b, 2)
	h := &server{rpc: ports[0], serf: ports[1]}
	s.prepare(b, h, name)
	s.all = append(s.all, h)
	return h
}

func (s *formed) prepare(b testing.TB, h *server, name string) {
	b.Helper()
	var join []string
	for _, other := range s.all {
		join = append(join, fmt.Sprintf("%q", other.gossip()))
	}
	files := s.ca.Files(b, pki.Server, name)
	key := filepath.Join(b.TempDir(), "gossip.key")
	check.NoError(b, os.WriteFile(key, []byte(gossipKey), 0o600))
	h.Host = testhost.NewNamed(b, name, fmt.Sprintf(`
leave_plugins_on_stop = false
bind_addr = "127.0.0.1"
ports {
  http = 0
  rpc  = %d
  serf = %d
}
server {
  bootstrap_expect = %d
  %s
}
retry_join   = [%s]
encrypt_file = %q
tls {
  ca_file   = %q
  cert_file = %q
  key_file  = %q
}
%s`, h.rpc, h.serf, servers, s.settings, strings.Join(join, ", "), key, files.CA, files.Cert, files.Key, s.more))
	config := check.Must(os.ReadFile(h.Path("agent.hcl")))(b)
	// Log at an agent's default level.
	h.Write("agent.hcl", regexp.MustCompile(`log_level.*\n`).ReplaceAllString(string(config), ""))
}

func (h *server) gossip() string { return fmt.Sprint("127.0.0.1:", h.serf) }

// leader waits until one of the running servers is the leader.
func (s *formed) leader(b testing.TB) *server {
	b.Helper()
	var leader *server
	s.all[0].Eventually("a server leads", func() error {
		for _, h := range s.all {
			if !h.Alive() {
				continue
			}
			if status, err := h.Status(); err == nil && status.GetLeader() {
				leader = h
				return nil
			}
		}
		return errors.New("nobody leads")
	})
	return leader
}

// awaitVoters waits until all servers vote.
func (s *formed) awaitVoters(b testing.TB) {
	b.Helper()
	leader := s.leader(b)
	leader.Eventually("all servers vote", func() error {
		peers := leader.Try("operator", "raft", "list-peers", "-o", "json")
		if n := strings.Count(strings.ReplaceAll(peers.Stdout, " ", ""), `"voter":true`); n < len(s.all) {
			return fmt.Errorf("%d of %d servers vote: %s%s", n, len(s.all), peers.Stdout, peers.Stderr)
		}
		return nil
	})
}

// pids returns the processes of the agents.
func (s *formed) pids() (pids []int) {
	for _, h := range s.all {
		pids = append(pids, h.PID())
	}
	return pids
}

// members returns the servers as an agent finds them by gossip.
func (s *formed) members() (all []route.Member) {
	for _, h := range s.all {
		all = append(all, route.Member{Name: h.Name, Addr: fmt.Sprint("127.0.0.1:", h.rpc), Server: true})
	}
	return all
}

// node is an agent without a ledger, from the servers' point of view: a certificate, a secret, and one
// connection to each server.
type node struct {
	*peer.Servers
	name   string
	secret peer.Secret
}

// node creates and registers a node.
func (s *formed) node(b testing.TB, name string) *node {
	b.Helper()
	n := s.agent(b, pki.Node, name)
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	if _, err := cluster.Apply(ctx, n,
		&command.PutNode{Node: claim.Node{Name: name, SecretHash: n.secret.Hash()}}); err != nil {
		b.Fatal(err)
	}
	n.live(b)
	return n
}

// live sends heartbeats at the default interval of agents until the end.
func (n *node) live(b testing.TB) {
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		beat := time.NewTicker(claim.DefaultLiveness.HeartbeatTTL / 3)
		defer beat.Stop()
		for {
			// A lost heartbeat, for example during an election, is followed by the next one.
			_, _ = n.Heartbeat(ctx, n.name)
			select {
			case <-ctx.Done():
				return
			case <-beat.C:
			}
		}
	})
	b.Cleanup(func() { cancel(); wg.Wait() })
}

// operator returns a client with a server's rights, which may send every command.
func (s *formed) operator(b testing.TB) cluster.Ledger {
	b.Helper()
	return s.agent(b, pki.Server, "operator")
}

func (s *formed) agent(b testing.TB, role pki.Role, name string) *node {
	b.Helper()
	secret := check.Must(peer.OpenSecret(filepath.Join(b.TempDir(), "node.secret")))(b)
	dialer := transport.NewDialer(s.ca.Certs(b, role, name))
	b.Cleanup(func() {
		if err := dialer.Close(); err != nil {
			b.Error(err)
		}
	})
	n := &node{name: name, secret: secret}
	n.Servers = peer.NewServers(peer.ServersConfig{
		Name: name, Secret: secret, Servers: s.members, Dialer: dialer,
		Terms: &peer.Terms{},
	})
	return n
}

// freePorts returns unused ports on loopback, for TCP and UDP. All of them are held until the last one is
// found, so that they differ.
func freePorts(b testing.TB, n int) (ports []int) {
	b.Helper()
	var held []io.Closer
	defer func() {
		for _, h := range held {
			_ = h.Close()
		}
	}()
	for len(ports) < n {
		l := check.Must(net.Listen("tcp", "127.0.0.1:0"))(b)
		held = append(held, l)
		port := l.Addr().(*net.TCPAddr).Port
		if p, err := net.ListenPacket("udp", fmt.Sprint("127.0.0.1:", port)); err == nil {
			held, ports = append(held, p), append(ports, port)
		}
	}
	return ports
}

// patience limits one call. It is long for slow machines.
const patience = time.Minute
