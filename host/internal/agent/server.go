package agent

import (
	"context"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/cluster/secrets/rotation"
	"github.com/pannier/pannier/host/internal/apiserver"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/host/internal/fencing/heartbeat"
	"github.com/pannier/pannier/host/internal/peer"
	"github.com/pannier/pannier/host/internal/peer/noderecord"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
)

// server is an agent that keeps the cluster's ledger with other servers, and runs workloads as a node does.
type server struct {
	*agent
	ledgerKeeper
	member
	nodes      *peer.Nodes
	callers    apiserver.Callers
	heartbeats *heartbeat.Tracker
}

func (s *server) steps() []step {
	return []step{
		{"data directory", s.openDataDir},
		{"journal", s.openJournal},
		{"secrets", s.openSecrets},
		{"plugins", s.openPlugins}, // they come up while the ledger is read
		{"cluster", s.joinCluster},
		{"fence", s.openLease},
		{"ledger", s.openLedger},
		{"secrets keys", s.openKeys},
		{"consul", s.openConsul},
		{"drivers", s.openDrivers},
		{"peers", s.openPeers},
		{"key rotation", s.rotateKeys}, // before anything is opened with the keys
		{"workloads", s.openWorkloads},
		{"node record", s.openNodeRecord},
		{"lease", s.keepLease},
		{"watcher", s.openWatcher},
		{"API", s.openServer},
		{"credentials", s.serveCredentials}, // the API has made the folder of the sockets
		{"signals", s.followSignals},
	}
}

func (s *server) joinCluster(ctx context.Context) error {
	return s.member.joinCluster(ctx, pki.Server, discovery.Server)
}

func (s *server) openLedger(ctx context.Context) error {
	err := s.ledgerKeeper.openLedger(ctx, func(cfg *cluster.Config) {
		cfg.Streams, cfg.Members = transport.NewRaftLayer(s.port, s.dialer), s.discovery
		cfg.Remote, cfg.Autopilot = s.servers, &s.cfg.Autopilot
	})
	if err != nil {
		return err
	}
	s.yieldLead = s.transferLead
	s.nodes = peer.NewNodes(peer.NodesConfig{
		Name: s.cfg.Name, Local: s.here, Member: s.find, Dialer: s.dialer,
		Ledger: s.cluster, Term: s.cluster.Term,
	})
	s.heartbeats = &heartbeat.Tracker{Cluster: s.cluster, Liveness: s.cfg.Server.Liveness, Log: s.log.Named("heartbeats")}
	return nil
}

// transferLead makes another server lead, if this one does and there is one. Otherwise calls would wait for an
// election.
func (s *server) transferLead(ctx context.Context) {
	if !s.cluster.Leader() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, yieldPatience)
	defer cancel()
	err := s.cluster.TransferLeadership(ctx, "")
	for err == nil && s.cluster.Stats().LeaderName == "" {
		select {
		case <-time.After(yieldInterval):
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		s.log.Warn("no other server leads instead of this one: calls may have to wait for an election", "error", err)
	}
}

func (s *server) openKeys(context.Context) error {
	cfg := s.rotationConfig()
	cfg.Servers = s.servers
	s.keys = rotation.New(cfg)
	return nil
}

func (s *server) openConsul(context.Context) error {
	return s.newConsul(s.cluster, func(ctx context.Context) (map[string][]byte, error) {
		servers, err := s.cluster.Servers()
		if err != nil {
			return nil, err
		}
		return s.servers.KeySets(ctx, servers)
	})
}

func (s *server) openDrivers(ctx context.Context) error {
	s.newDrivers()
	s.controllers = controllers.New(controllers.Config{
		Node: s.cfg.Name, ClusterID: s.clusterID, Calls: s.calls, Secrets: s.unseal,
		Cluster: &noderecord.Directory{Cluster: s.cluster, Calls: s.nodes.Storage},
	})
	return s.startDrivers(ctx, s.memberDeps())
}

// openPeers answers other agents and, while this server leads, this agent's own calls.
func (s *server) openPeers(context.Context) error {
	l := &peer.Leader{
		Ledger: s.cluster, Controllers: s.controllers, Secrets: s.unseal, Keys: s.sealer, Tokens: s.tokens,
		Heartbeats: s.heartbeats, Stop: s.nodes.StopWorkload, Servers: s.knownServers,
	}
	if s.cfg.ACL.Enabled {
		l.Callers = &s.callers
	}
	s.servers.SetLocal(l)
	s.servePeers(l)
	return nil
}

func (s *server) openWatcher(ctx context.Context) error {
	s.closers.loop(ctx, func(ctx context.Context) { s.cluster.WhileLeader(ctx, s.heartbeats.Run) })
	cfg := s.watcherConfig()
	cfg.Nodes = s.nodes
	s.startWatcher(ctx, cfg)
	return nil
}

func (s *server) openServer(ctx context.Context) error {
	cfg := s.memberConfig()
	s.serveLedger(&cfg)
	cfg.Health, cfg.Votes, cfg.Volumes.Nodes, cfg.Agent.Nodes.Direct = s.health, s.cluster.Votes, s.nodes, true
	cfg.Volumes.Heard, cfg.Nodes.Heard = s.heartbeats.Known, s.heartbeats.Known
	s.finishActs(ctx, &cfg)
	if err := s.serveAPI(ctx, cfg); err != nil {
		return err
	}
	s.callers.Use(s.server)
	return nil
}

func (s *server) health() []string {
	stats := s.cluster.Stats()
	reasons := ledgerHealth(stats)
	if stats.Full != nil { // the other servers continue without this one
		reasons = append(reasons, stats.Full.Error())
	}
	return slices.Concat(reasons, s.keysHealth(), s.leaseHealth(), s.pluginHealth())
}
