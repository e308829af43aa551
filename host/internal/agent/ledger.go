package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/cluster/secrets/rotation"
	"github.com/pannier/pannier/host/internal/apiserver"
	aclapi "github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/operator"
	"github.com/pannier/pannier/host/internal/consul/tokens"
	"github.com/pannier/pannier/host/internal/peer/watcher"
)

// ledgerKeeper is an agent that keeps a ledger: standalone, or a server of a cluster.
type ledgerKeeper struct {
	*agent
	cluster *cluster.Node
	keys    *rotation.Keeper
	watcher *watcher.Watcher
}

// openLedger opens the ledger. join configures how it reaches other servers.
func (k *ledgerKeeper) openLedger(ctx context.Context, join func(*cluster.Config)) error {
	key, err := k.cfg.Ledger.Read()
	if err != nil {
		return err
	}
	cfg := cluster.Config{
		Dir: filepath.Join(k.cfg.DataDir, "ledger"), Name: k.cfg.Name,
		BootstrapExpect: k.cfg.Server.BootstrapExpect, ElectionTimeout: k.cfg.Server.ElectionTimeout,
		Key: key.Bytes(), Logger: k.log.Named("ledger"),
	}
	join(&cfg)
	node, err := cluster.Open(ctx, cfg)
	if err != nil {
		return err
	}
	k.closers.add(node.Close)
	k.cluster, k.ledger = node, node
	k.clusterID = once(func(ctx context.Context) (string, error) {
		c, err := node.Identity(ctx)
		return c.ID, err
	})
	return nil
}

// once returns a function that calls read until it succeeds, and then remembers the result.
func once(read func(ctx context.Context) (string, error)) func(ctx context.Context) (string, error) {
	var mu sync.Mutex
	var text string
	return func(ctx context.Context) (_ string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if text == "" {
			text, err = read(ctx)
		}
		return text, err
	}
}

func (k *ledgerKeeper) rotationConfig() rotation.Config {
	return rotation.Config{
		Name: k.cfg.Name, Sealer: k.sealer, Ledger: k.cluster, SigningKey: tokens.ForSigningKey,
		Log: k.log.Named("secrets"),
	}
}

// rotateKeys keeps this server's secrets keys up to date, and rotates the cluster's while this server leads.
func (k *ledgerKeeper) rotateKeys(ctx context.Context) error {
	k.closers.loop(ctx, k.keys.Follow)
	k.closers.loop(ctx, func(ctx context.Context) { k.cluster.WhileLeader(ctx, k.keys.Lead) })
	return nil
}

// unseal decrypts a volume's secrets for one call.
func (k *ledgerKeeper) unseal(ctx context.Context, v claim.Volume) (map[string]string, error) {
	return k.keys.Unseal(ctx, v.SealedSecrets, secrets.ForVolume(v.Namespace, v.ID))
}

func (k *ledgerKeeper) watcherConfig() watcher.Config {
	cfg := watcher.Config{
		NodeName: k.cfg.Name, Node: k.workloads, Cluster: k.cluster, Controllers: k.controllers,
		DriversChanged: k.drivers.Changed, Forget: k.services.Forget, Events: k.events, Log: k.log.Named("watcher"),
		GC: watcher.GC{
			Interval: k.cfg.GC.Interval, Claims: k.cfg.GC.ClaimThreshold, Drivers: k.cfg.GC.DriverThreshold,
			Workloads: k.cfg.GC.WorkloadThreshold, Nodes: k.cfg.GC.NodeThreshold,
		},
	}
	if len(k.cfg.Consuls) > 0 {
		cfg.SweepTokens = k.sweepTokens
	}
	return cfg
}

// startWatcher releases claims, collects garbage and rotates the signing key while this server leads.
func (k *ledgerKeeper) startWatcher(ctx context.Context, cfg watcher.Config) {
	k.watcher = watcher.New(cfg)
	k.closers.loop(ctx, func(ctx context.Context) { k.cluster.WhileLeader(ctx, k.watcher.Run) })
	k.closers.loop(ctx, func(ctx context.Context) { k.cluster.WhileLeader(ctx, k.tokens.LeadRotation) })
}

// finishActs repeats what was begun with volumes and not finished, while this server leads.
func (k *ledgerKeeper) finishActs(ctx context.Context, cfg *apiserver.Config) {
	volumes := cfg.Volumes
	k.closers.loop(ctx, func(ctx context.Context) { k.cluster.WhileLeader(ctx, volumes.FinishActs) })
}

// sweepTokens revokes the tokens whose workload is gone.
func (k *ledgerKeeper) sweepTokens(ctx context.Context) error {
	report, err := k.tokens.Sweep(ctx, false)
	if err != nil {
		return err
	}
	return report.Err()
}

// serveLedger configures the API to serve the ledger.
func (k *ledgerKeeper) serveLedger(cfg *apiserver.Config) {
	l := k.cluster
	cfg.Ledger, cfg.JWKS = l, k.tokens.JWKS
	cfg.Volumes.Ledger, cfg.Volumes.Watcher, cfg.Workloads.Ledger, cfg.Drivers.Ledger = l, k.watcher, l, l
	cfg.Nodes.Ledger, cfg.ACLs.Ledger, cfg.Agent.Ledger = l, l, l
	cfg.Operator = operator.Handler{
		Log: cfg.Logger, Ledger: l, Watcher: k.watcher, SecretsKeys: k.keys, SigningKeys: k.tokens,
	}
	if k.cfg.ACL.Enabled {
		cfg.ACL = aclapi.NewResolver(aclapi.Here{Ledger: k.cluster}, 0, k.log.Named("acl"))
	}
}

// ledgerHealth explains why a server's ledger does not accept commands.
func ledgerHealth(s cluster.Stats) []string {
	switch {
	case s.Err != nil:
		return []string{fmt.Sprintf("the ledger takes no command: %v", s.Err)}
	case s.Stalled != nil:
		return []string{s.Stalled.Error()}
	case !s.Leader && s.LeaderName == "":
		return []string{"the ledger has no leader (see: pannier server members)"}
	default:
		return nil
	}
}

func (k *ledgerKeeper) keysHealth() []string {
	if problem := k.keys.Problem(); problem != "" {
		return []string{problem}
	}
	return nil
}
