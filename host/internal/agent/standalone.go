package agent

import (
	"context"
	"slices"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/secrets/rotation"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/host/internal/peer"
)

// standalone is an agent with a ledger of its own, and no other hosts.
type standalone struct{ ledgerKeeper }

func (s *standalone) steps() []step {
	return []step{
		{"data directory", s.openDataDir},
		{"journal", s.openJournal},
		{"secrets", s.openSecrets},
		{"plugins", s.openPlugins}, // they come up while the ledger is read
		{"ledger", s.openLedger},
		{"secrets keys", s.openKeys},
		{"consul", s.openConsul},
		{"drivers", s.openDrivers},
		{"key rotation", s.rotateKeys}, // before anything is opened with the keys
		{"workloads", s.openWorkloads},
		{"node record", s.openNodeRecord},
		{"drain", s.followDrains},
		{"watcher", s.openWatcher},
		{"API", s.openServer},
		{"credentials", s.serveCredentials}, // the API has made the folder of the sockets
		{"signals", s.followSignals},
	}
}

func (s *standalone) openLedger(ctx context.Context) error {
	if err := s.ledgerKeeper.openLedger(ctx, func(*cluster.Config) {}); err != nil {
		return err
	}
	_, err := s.clusterID(ctx)
	return err
}

func (s *standalone) openKeys(context.Context) error {
	s.keys = rotation.New(s.rotationConfig())
	return nil
}

func (s *standalone) openConsul(context.Context) error { return s.newConsul(s.cluster, nil) }

func (s *standalone) openDrivers(ctx context.Context) error {
	s.newDrivers()
	s.controllers = controllers.New(controllers.Config{
		Node: s.cfg.Name, ClusterID: s.clusterID, Calls: s.calls,
		Secrets: s.unseal,
	})
	deps := s.workloadDeps()
	deps.Controller, deps.Secrets, deps.Tokens = attacher{&peer.Leader{Ledger: s.cluster, Controllers: s.controllers}},
		s.unseal, s.tokens
	return s.startDrivers(ctx, deps)
}

// rotateKeys manages the secrets keys. Which one is active is known before anything is sealed.
func (s *standalone) rotateKeys(ctx context.Context) error {
	if err := s.keys.Sync(ctx); err != nil {
		s.log.Warn("not every secrets key is on this host: retrying", "error", err)
	}
	return s.ledgerKeeper.rotateKeys(ctx)
}

func (s *standalone) openNodeRecord(ctx context.Context) error {
	s.newRegistrar()
	s.closers.loop(ctx, s.registrar.Run)
	return nil
}

func (s *standalone) openWatcher(ctx context.Context) error {
	s.startWatcher(ctx, s.watcherConfig())
	return nil
}

func (s *standalone) openServer(ctx context.Context) error {
	cfg := s.apiConfig()
	s.serveLedger(&cfg)
	cfg.Health, cfg.SocketRoot, cfg.Operator.Reconcile = s.health, s.cfg.ACL.SocketRoot, s.workloads.Reconciler.Reconcile
	s.finishActs(ctx, &cfg)
	return s.serveAPI(ctx, cfg)
}

func (s *standalone) health() []string {
	return slices.Concat(ledgerHealth(s.cluster.Stats()), s.keysHealth(), s.pluginHealth())
}

// attacher attaches volumes to the only host that there is.
type attacher struct{ leader *peer.Leader }

func (a attacher) Attach(ctx context.Context, v claim.Volume, modes claim.Capability, node string,
) (map[string]string, error) {
	return a.leader.Attach(ctx, node, v.VolumeRef, modes, v.MountOptions)
}
