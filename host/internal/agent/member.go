package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/host/internal/apiserver"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	"github.com/pannier/pannier/host/internal/peer"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/machine"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

// member is an agent of a cluster: a server or a node.
type member struct {
	*agent
	certs     *pki.Certs
	port      *transport.Port
	dialer    *transport.Dialer
	agents    http.RoundTripper // calls the API of other agents
	discovery *discovery.Discovery
	secret    peer.Secret
	terms     *peer.Terms
	servers   *peer.Servers
	here      *peer.Node // answers the leader's calls
	fence     *fence.Client
	lease     *lease.Lease
}

// joinCluster opens the agent's certificate, its port, and the gossip by which agents find each other. Calls are
// answered from servePeers on.
func (m *member) joinCluster(ctx context.Context, role pki.Role, gossips discovery.Role) (err error) {
	m.terms = &peer.Terms{}
	self := pki.Identity{Name: m.cfg.Name, DC: m.cfg.Datacenter, Role: role}
	if m.certs, err = pki.Load(*m.cfg.TLS, self, m.log.Named("tls")); err != nil {
		return err
	}
	if err := m.checkLedger(); err != nil {
		return err
	}
	if m.secret, err = peer.OpenSecret(filepath.Join(m.cfg.DataDir, secretFile)); err != nil {
		return err
	}
	m.port, err = transport.Open(ctx, transport.Config{
		Addr: net.JoinHostPort(m.cfg.BindAddr, strconv.Itoa(m.cfg.RPCPort)), Advertise: m.cfg.AdvertiseAddr,
		Certs: m.certs, Logger: m.log.Named("rpc"), Listen: m.listenRPC,
	})
	if err != nil {
		return err
	}
	m.closers.add(m.port.Close)
	machineID, err := process.MachineID()
	if err != nil {
		return err
	}
	m.dialer = transport.NewDialer(m.certs, m.traces.Client()...)
	m.closers.add(m.dialer.Close)
	m.agents = m.dialer.Agents(func(name string) (addr string, role pki.Role, known bool) {
		a, known := m.find(name)
		if role = pki.Node; a.Server {
			role = pki.Server
		}
		return a.Addr, role, known
	})
	key, err := m.cfg.Gossip.Read()
	if err != nil {
		return err
	}
	serf := filepath.Join(m.cfg.DataDir, "serf")
	if err := os.MkdirAll(serf, 0o700); err != nil {
		return err
	}
	m.discovery, err = discovery.Open(discovery.Config{ //nolint:contextcheck // it lives until it is closed
		Self: discovery.Self{
			Name: m.cfg.Name, Role: gossips, Datacenter: m.cfg.Datacenter, RPC: m.port.Addr().String(),
			Version: m.version, Machine: claim.Machine(m.secret.Hash()),
		},
		Bind: m.cfg.BindAddr, Port: m.cfg.SerfPort, Advertise: m.cfg.AdvertiseAddr, RetryJoin: m.cfg.RetryJoin, Key: string(
			key),
		KeyringFile: filepath.Join(serf, "keyring"), SnapshotFile: filepath.Join(serf, "snapshot"),
		Logger: m.log.Named("serf"),
	})
	if err != nil {
		return err
	}
	m.closers.add(m.discovery.Close)
	m.servers = peer.NewServers(peer.ServersConfig{
		Name: m.cfg.Name, Secret: m.secret, BootID: machineID, Servers: m.knownServers, Dialer: m.dialer,
		Terms: m.terms,
	})
	m.here = &peer.Node{Info: peer.Info{
		Name: m.cfg.Name, Version: m.version, BootID: machineID,
		SecretHash: m.secret.Hash(), StartedAt: m.started,
	}}
	return nil
}

// secretFile, in the data directory, has the node's secret. A single host has none.
const secretFile = "node.secret"

// checkLedger refuses the ledger of a single host in an agent that is to be in a cluster with others: it would be a
// second cluster beside theirs, and a volume could be claimed in both.
func (m *member) checkLedger() error {
	if m.cfg.Server.Enabled && m.cfg.Server.BootstrapExpect == 1 && len(m.cfg.RetryJoin) == 0 {
		return nil // the single host becomes the first server
	}
	ledger := filepath.Join(m.cfg.DataDir, "ledger")
	for path, want := range map[string]bool{ledger: true, filepath.Join(m.cfg.DataDir, secretFile): false} {
		_, err := os.Stat(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if (err == nil) != want {
			return nil
		}
	}
	return fmt.Errorf("%s is the ledger of a single host, and this agent is to be in a cluster with others: if the host"+
		" has volumes to keep, make it the first server (bootstrap_expect = 1, no retry_join), and let the others join it;"+
		" if not, move the ledger away (mv %s %s.single) and start the agent again", ledger, ledger, ledger)
}

// rpcSocket names the socket of the port for other agents.
const rpcSocket = "rpc"

// listenRPC opens the port, unless the program before has handed it over.
func (m *member) listenRPC(ctx context.Context, network, address string) (net.Listener, error) {
	return m.sockets.Listen(rpcSocket, address, false, func() (net.Listener, error) {
		var listen net.ListenConfig
		return listen.Listen(ctx, network, address)
	})
}

// openLease finds the fence, or starts one, and takes over the node's lease.
func (m *member) openLease(ctx context.Context) (err error) {
	if m.fence, err = fence.Open(ctx,
		fence.Config{Dir: filepath.Join(m.cfg.DataDir, "fence"), Log: m.log.Named("fence")}); err != nil {
		return err
	}
	m.closers.add(m.fence.Close)
	if err := machine.CheckClock(claim.MaxDrift); err != nil {
		m.log.Warn("leases count on this machine's clock", "error", err)
	}
	m.lease = lease.New(m.fence, m.log.Named("lease"))
	m.closers.add(m.lease.Close)
	return nil
}

// memberDeps returns the workloads' dependencies, including what the leader does for this node.
func (m *member) memberDeps() workload.Deps {
	deps := m.workloadDeps()
	deps.Controller, deps.Secrets, deps.Tokens = m.servers, m.servers.VolumeSecrets, peer.NodeTokens{
		Servers: m.servers,
		Local:   m.tokens,
	}
	deps.Nodes, deps.Lease, deps.Fenced, deps.RemoteLedger = m.servers, m.lease, m.fenced, true
	return deps
}

// servePeers answers other agents. leader answers calls to the leader; nil on a node.
func (m *member) servePeers(leader *peer.Leader) {
	m.here.Workloads, m.here.Mounted, m.here.Calls = m.workloads, m.controllers, m.calls
	s := peer.Serve(m.port.GRPC(), peer.Config{
		Leader: leader, Node: m.here, Terms: m.terms, Audit: m.audit.Peer, Log: m.log.Named("peer"),
	}, append(m.port.ServerOptions(), m.traces.Server()...)...)
	m.closers.add(s.Close)
}

func (m *member) openNodeRecord(ctx context.Context) error {
	m.newRegistrar()
	m.registrar.BootID = m.here.Info.BootID
	m.registrar.Address, m.registrar.SecretHash = m.port.Addr().String(), m.secret.Hash()
	m.closers.loop(ctx, m.registrar.Run)
	return nil
}

// keepLease sends heartbeats, stops what this node may not use any more, and follows its drain.
func (m *member) keepLease(ctx context.Context) error {
	k := &lease.Keeper{
		Node: m.cfg.Name, Lease: m.lease, Servers: m.servers, Log: m.log.Named("lease"),
		Lost: func(ctx context.Context, why string) {
			if err := m.workloads.LoseLease(ctx, why); err != nil && ctx.Err() == nil {
				m.log.Error("not everything could be taken down in time: the fence may have to do it", "error", err)
			}
		},
		Back: func(ctx context.Context, answer lease.Answer) error {
			if err := m.workloads.Reconciler.Reconcile(ctx); err != nil {
				return err
			}
			if answer.Status != claim.NodeDown {
				return nil
			}
			return m.registrar.Put(ctx)
		},
	}
	m.closers.loop(ctx, k.Run)
	m.closers.loop(ctx, m.announceCluster)
	m.closers.loop(ctx, m.renewCertificate)
	return m.followDrains(ctx)
}

// announceCluster announces the cluster's id once the ledger has it.
func (m *member) announceCluster(ctx context.Context) {
	for {
		id, err := m.clusterID(ctx)
		if err == nil {
			m.discovery.SetCluster(id)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

const (
	// renewInterval is the pause between two looks whether the certificate must be renewed, and between two attempts.
	renewInterval = time.Hour
	// renewPatience bounds asking one server for a certificate.
	renewPatience = 10 * time.Second
)

// renewCertificate has the certificate renewed before it expires, if the host has joined by a token.
func (m *member) renewCertificate(ctx context.Context) {
	for m.cfg.TLS.Renews() {
		if time.Now().After(m.certs.RenewAt()) {
			if err := m.askCertificate(ctx); err != nil && ctx.Err() == nil {
				m.log.Error("the certificate could not be renewed, and is tried again", "expires", m.certs.NotAfter(), "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(renewInterval):
		}
	}
}

// askCertificate has one of the servers sign a certificate for a new key.
func (m *member) askCertificate(ctx context.Context) error {
	request, key, err := pki.NewRequest()
	if err != nil {
		return err
	}
	errs := []error{errors.New("no server is known")}
	for n, s := range m.knownServers() {
		client := hostv1connect.NewClusterServiceClient(&http.Client{Transport: m.agents, Timeout: renewPatience},
			"https://"+s.Name)
		signed, err := client.SignCertificate(ctx, &hostv1.SignCertificateRequest{Name: m.cfg.Name, Request: request})
		if err == nil {
			return m.cfg.TLS.Replace(signed.GetCertificate(), key)
		}
		if n == 0 {
			errs = nil
		}
		errs = append(errs, fmt.Errorf("ask server %q: %w", s.Name, err))
	}
	return errors.Join(errs...)
}

// fenced describes what the fence did to a workload since a time in this boot.
func (m *member) fenced(ref claim.WorkloadRef, since boottime.Instant) string {
	reports, err := m.fence.Reports()
	if err != nil {
		return fmt.Sprintf("the fence's reports cannot be read: %v", err)
	}
	var did []string
	for _, r := range reports {
		if r.Hit(ref, process.BootID(), since) {
			did = append(did, r.String())
		}
	}
	return strings.Join(did, "; ")
}

// memberConfig is the API's configuration of a cluster's agent.
func (m *member) memberConfig() apiserver.Config {
	cfg := m.apiConfig()
	m.measureMember()
	cfg.Leader, cfg.Port, cfg.Certs = m.servers.Router, m.port, m.certs
	cfg.Nodes.Leader, cfg.Nodes.Discovery = m.servers.Router, m.discovery
	others := cfg.Agent.Nodes
	others.Leader, others.Discovery = m.servers.Router, m.discovery
	others.Agents = m.agents
	return cfg
}

func (m *member) leaseHealth() []string {
	if err := m.lease.Valid(); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// knownServers are the servers that have not left.
func (m *member) knownServers() (all []route.Member) {
	for _, s := range m.discovery.Servers() {
		if s.Status != discovery.Left {
			all = append(all, routeMember(s))
		}
	}
	return all
}

func (m *member) find(name string) (route.Member, bool) {
	found, ok := m.discovery.Member(name)
	return routeMember(found), ok
}

func routeMember(m discovery.Member) route.Member {
	return route.Member{Name: m.Name, Addr: m.RPC, Server: m.Role == discovery.Server}
}
