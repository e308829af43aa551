package agent

import (
	"context"
	"path/filepath"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/tokens"
	"github.com/pannier/pannier/host/internal/secrets"
	"github.com/pannier/pannier/host/internal/secrets/rotation"
)

func (a *agent) openSecrets(context.Context) (err error) {
	a.sealer, err = secrets.OpenFiles(secrets.Files{
		First: filepath.Join(a.cfg.DataDir, "secrets.key"), Dir: filepath.Join(a.cfg.DataDir, "secrets.keys"), Shared: a.cfg.TLS != nil,
	})
	return err
}

// openKeys builds what looks after a server's secrets keys.
func (a *agent) openKeys(context.Context) error {
	if a.cluster == nil {
		return nil
	}
	cfg := rotation.Config{
		Name: a.cfg.Name, Sealer: a.sealer, Ledger: a.cluster, SigningKey: tokens.ForSigningKey, Log: a.log.Named("secrets"),
	}
	if a.hosts != nil {
		cfg.Servers = a.hosts.servers
	}
	a.keys = rotation.New(cfg)
	return nil
}

// keepKeys begins to look after the keys. A host that is alone knows which one seals before
// anything is sealed.
func (a *agent) keepKeys(ctx context.Context) error {
	if a.keys == nil {
		return nil
	}
	if a.hosts == nil {
		if err := a.keys.Sync(ctx); err != nil {
			a.log.Warn("not every secrets key is here, and it is looked again", "error", err)
		}
	}
	a.closers.loop(ctx, a.keys.Follow)
	a.closers.loop(ctx, func(ctx context.Context) { a.cluster.WhileLeader(ctx, a.keys.Lead) })
	return nil
}

// unseal opens a volume's secrets for one call.
func (a *agent) unseal(ctx context.Context, v claim.Volume) (map[string]string, error) {
	additional := secrets.ForVolume(v.Namespace, v.ID)
	if a.keys == nil {
		return a.sealer.Unseal(v.SealedSecrets, additional)
	}
	return a.keys.Unseal(ctx, v.SealedSecrets, additional)
}
