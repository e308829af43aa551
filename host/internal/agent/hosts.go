package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/fencing/heartbeat"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	"github.com/pannier/pannier/host/internal/peer"
	"github.com/pannier/pannier/host/internal/peer/noderecord"
	"github.com/pannier/pannier/host/internal/peer/pki"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/process"
)

// ledger is the way to the ledger, on this host or on the server that leads.
type ledger interface {
	noderecord.Cluster
	noderecord.Registry
	NodeRecord(ctx context.Context, name string, b cluster.Blocking) (claim.Node, uint64, error)
	SetNodeDuty(ctx context.Context, duty command.SetNodeDuty) (claim.Node, error)
	Cluster(ctx context.Context, b cluster.Blocking) (claim.Cluster, uint64, error)
	Granted(ctx context.Context, secretHash string, b cluster.Blocking) (acl.Granted, uint64, error)
}

// hosts is this agent's part in a cluster. A host of its own has none.
type hosts struct {
	certs     *pki.Certs
	port      *transport.Port
	dialer    *transport.Dialer
	discovery *discovery.Discovery
	secret    peer.Secret
	terms     *peer.Terms
	servers   *peer.Servers
	nodes     *peer.Nodes
	local     *peer.Leader // nil: it is no server
	here      *peer.Node
	fence     *fence.Client
	lease     *lease.Lease
	beats     *heartbeat.Tracker
	// wired is closed when all that answers for this agent itself has been built: until then
	// nobody asks the servers.
	wired chan struct{}
}

// openHosts opens what a host of a cluster has besides: its certificate, its port, and
// the gossip by which it finds the others. Calls are answered when all is built.
func (a *agent) openHosts(ctx context.Context) (err error) {
	if a.cfg.TLS == nil {
		return nil
	}
	role, gossips := pki.Node, discovery.Node
	if a.cfg.Server.Enabled {
		role, gossips = pki.Server, discovery.Server
	}
	h := &hosts{terms: &peer.Terms{}, wired: make(chan struct{})}
	who := pki.Identity{Name: a.cfg.Name, DC: a.cfg.Datacenter, Role: role}
	files := pki.Files{CA: a.cfg.TLS.CAFile, Cert: a.cfg.TLS.CertFile, Key: a.cfg.TLS.KeyFile}
	if h.certs, err = pki.Load(files, who, a.log.Named("tls")); err != nil {
		return err
	}
	if h.secret, err = peer.OpenSecret(filepath.Join(a.cfg.DataDir, "node.secret")); err != nil {
		return err
	}
	h.port, err = transport.Open(ctx, transport.Config{
		Addr: net.JoinHostPort(a.cfg.BindAddr, strconv.Itoa(a.cfg.RPCPort)), Advertise: a.cfg.AdvertiseAddr,
		Certs: h.certs, Logger: a.log.Named("rpc"),
	})
	if err != nil {
		return err
	}
	a.closers.add(h.port.Close)
	h.dialer = transport.NewDialer(h.certs)
	a.closers.add(h.dialer.Close)
	key, err := a.cfg.Gossip.Read()
	if err != nil {
		return err
	}
	if key == "" {
		a.log.Warn("gossip is in clear: give the agents an encrypt_file")
	}
	serf := filepath.Join(a.cfg.DataDir, "serf")
	if err := os.MkdirAll(serf, 0o700); err != nil {
		return err
	}
	h.discovery, err = discovery.Open(discovery.Config{ //nolint:contextcheck // it lives until it is closed
		Self: discovery.Self{
			Name: a.cfg.Name, Role: gossips, Datacenter: a.cfg.Datacenter, RPC: h.port.Addr().String(),
			Expect: a.cfg.Server.BootstrapExpect, Version: a.version, Ledger: command.Level,
		},
		Bind: a.cfg.BindAddr, Port: a.cfg.SerfPort, Advertise: a.cfg.AdvertiseAddr, RetryJoin: a.cfg.RetryJoin, Key: string(key),
		KeyringFile: filepath.Join(serf, "keyring"), SnapshotFile: filepath.Join(serf, "snapshot"),
		Logger: a.log.Named("serf"),
	})
	if err != nil {
		return err
	}
	a.closers.add(h.discovery.Close)
	if role == pki.Server {
		h.local = &peer.Leader{Servers: h.known}
	}
	h.servers = peer.NewServers(peer.ServersConfig{
		Name: a.cfg.Name, Secret: h.secret, Servers: h.known, Dialer: h.dialer, Local: h.local, Terms: h.terms,
	})
	h.here = &peer.Node{Info: peer.Info{Name: a.cfg.Name, Version: a.version, BootID: process.BootID(), StartedAt: a.started}}
	a.hosts = h
	return a.openLease(ctx)
}

// openLease finds the fence, or starts one, and with it the lease that this node has.
func (a *agent) openLease(ctx context.Context) (err error) {
	h := a.hosts
	if h.fence, err = fence.Open(ctx, fence.Config{Dir: filepath.Join(a.cfg.DataDir, "fence"), Log: a.log.Named("fence")}); err != nil {
		return err
	}
	a.closers.add(h.fence.Close)
	h.lease = lease.New(h.fence, a.log.Named("lease"))
	a.closers.add(h.lease.Close)
	return nil
}

// join gives a server's ledger what it reaches the other servers by.
func (h *hosts) join(cfg *cluster.Config, wanted config.Autopilot) {
	autopilot := claim.DefaultAutopilot()
	autopilot.CleanupDeadServers, autopilot.MinQuorum = wanted.CleanupDeadServers, wanted.MinQuorum
	autopilot.LastContactThreshold, autopilot.ServerStabilizationTime = wanted.LastContactThreshold, wanted.ServerStabilizationTime
	cfg.Streams, cfg.Members, cfg.Remote, cfg.Autopilot = transport.NewRaftLayer(h.port, h.dialer), h.discovery, h, &autopilot
}

// openPeers answers other agents, and begins to ask them.
func (a *agent) openPeers(context.Context) error {
	h := a.hosts
	if h == nil {
		return nil
	}
	h.here.Workloads, h.here.Mounted, h.here.Calls = a.workloads, a.controllers, a.driverCalls()
	if h.local != nil {
		h.local.Ledger, h.local.Controllers, h.local.Secrets, h.local.Tokens = a.cluster, a.controllers, a.unseal, a.tokens
		h.local.Heartbeats, h.local.Stop, h.local.Keys = h.beats, h.nodes.StopWorkload, a.sealer
	}
	close(h.wired)
	s := peer.Serve(h.port.GRPC(), peer.Config{Leader: h.local, Node: h.here, Terms: h.terms, Log: a.log.Named("peer")}, h.port.ServerOptions()...)
	a.closers.add(s.Close)
	return nil
}

// keepLease sends heartbeats, and takes down what this node may not use any more.
func (a *agent) keepLease(ctx context.Context) error {
	h := a.hosts
	if h == nil {
		return nil
	}
	k := &lease.Keeper{
		Node: a.cfg.Name, Lease: h.lease, Servers: h.servers, Log: a.log.Named("lease"),
		Lost: func(ctx context.Context, why string) {
			if err := a.workloads.LoseLease(ctx, why); err != nil && ctx.Err() == nil {
				a.log.Error("not everything could be taken down in time, and the fence may have to do it", "error", err)
			}
		},
		Back: func(ctx context.Context, answer lease.Answer) error {
			if err := a.workloads.Reconcile(ctx); err != nil {
				return err
			}
			if answer.Status != claim.NodeDown {
				return nil
			}
			return a.registrar.Put(ctx)
		},
	}
	a.closers.loop(ctx, k.Run)
	d := &noderecord.Drainer{Name: a.cfg.Name, Ledger: a.ledger, Workloads: a.workloads, Drivers: a.drivers, Events: a.events, Log: a.log.Named("drain")}
	a.closers.loop(ctx, d.Run)
	return nil
}

// fenced tells what the fence did to a workload since a moment.
func (h *hosts) fenced(ref claim.WorkloadRef, since time.Time) string {
	reports, err := h.fence.Reports()
	if err != nil {
		return fmt.Sprintf("what the fence did cannot be read: %v", err)
	}
	var did []string
	for _, r := range reports {
		if slices.Contains(r.Workloads, ref) && r.Began.After(since) {
			did = append(did, r.String())
		}
	}
	return strings.Join(did, "; ")
}

// Apply brings a command to the server that leads (cluster.Remote).
func (h *hosts) Apply(ctx context.Context, entry []byte) (outcome []byte, err error) {
	if err := h.await(ctx); err != nil {
		return nil, err
	}
	return h.servers.Apply(ctx, entry)
}

// Query brings a query there (cluster.Remote).
func (h *hosts) Query(ctx context.Context, query []byte) (answer []byte, err error) {
	if err := h.await(ctx); err != nil {
		return nil, err
	}
	return h.servers.Query(ctx, query)
}

func (h *hosts) await(ctx context.Context) error {
	select {
	case <-h.wired:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// known are the servers that can be asked.
func (h *hosts) known() (all []peer.Member) {
	for _, m := range h.discovery.Servers() {
		if m.Status != discovery.Left {
			all = append(all, shownMember(m))
		}
	}
	return all
}

func (h *hosts) member(name string) (peer.Member, bool) {
	m, ok := h.discovery.Member(name)
	return shownMember(m), ok
}

func shownMember(m discovery.Member) peer.Member {
	return peer.Member{Name: m.Name, Addr: m.RPC, Server: m.Role == discovery.Server}
}

// leading finds the server that answers for the ledger (server.Leader).
type leading struct {
	hosts   *hosts
	cluster *cluster.Node // nil: this agent is no server
	ledger  ledger
}

var errNoServer = errors.New("no server is known: see retry_join in the agent's configuration, and: pannier server members")

func (l leading) IsLeader() bool { return l.cluster != nil && l.cluster.Leader() }

// findTimeout bounds the search for a leader: it is begun again.
const findTimeout = 5 * time.Second

func (l leading) LeaderURL(ctx context.Context, sure bool) (*url.URL, http.RoundTripper, error) {
	if l.cluster == nil && (sure || l.LeaderName() == "") {
		// Whoever answers a query leads, and is remembered.
		asking, cancel := context.WithTimeout(ctx, findTimeout)
		defer cancel()
		if _, _, err := l.ledger.Cluster(asking, cluster.Blocking{}); err != nil {
			return nil, nil, err
		}
	}
	m, ok := l.hosts.servers.Leader()
	if !ok {
		return nil, nil, errNoServer
	}
	return &url.URL{Scheme: "https", Host: m.Addr}, l.hosts.dialer.Transport(), nil
}

func (l leading) Misled(where *url.URL) { l.hosts.servers.Forget(where.Host) }

func (l leading) LeaderName() string { return l.hosts.servers.LeaderName() }

// clusterID is the id of the cluster, which has to have been formed.
func (a *agent) clusterID(ctx context.Context) (string, error) {
	a.id.mu.Lock()
	defer a.id.mu.Unlock()
	for a.id.text == "" {
		if a.cluster != nil {
			c, err := a.cluster.Identity(ctx)
			if err != nil {
				return "", err
			}
			a.id.text = c.ID
			continue
		}
		c, index, err := a.ledger.Cluster(ctx, cluster.Blocking{MinIndex: a.id.index, Wait: time.Minute})
		if err != nil {
			return "", err
		}
		a.id.text, a.id.index = c.ID, index
	}
	return a.id.text, nil
}
