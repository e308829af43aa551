package agent

import (
	"context"
	"fmt"
	"net"
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
	"github.com/pannier/pannier/host/internal/leader/route"
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
	h := &hosts{terms: &peer.Terms{}}
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
		Name: a.cfg.Name, Secret: h.secret, Servers: h.known, Dialer: h.dialer, Terms: h.terms,
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
	cfg.Streams, cfg.Members, cfg.Remote, cfg.Autopilot = transport.NewRaftLayer(h.port, h.dialer), h.discovery, h.servers, &autopilot
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
		h.servers.SetLocal(h.local)
	}
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

// known are the servers that can be asked.
func (h *hosts) known() (all []route.Member) {
	for _, m := range h.discovery.Servers() {
		if m.Status != discovery.Left {
			all = append(all, shownMember(m))
		}
	}
	return all
}

func (h *hosts) member(name string) (route.Member, bool) {
	m, ok := h.discovery.Member(name)
	return shownMember(m), ok
}

func shownMember(m discovery.Member) route.Member {
	return route.Member{Name: m.Name, Addr: m.RPC, Server: m.Role == discovery.Server}
}

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
