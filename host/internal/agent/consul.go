package agent

import (
	"context"
	"time"

	"github.com/pannier/pannier/host/internal/consul/services"
	"github.com/pannier/pannier/host/internal/consul/tokens"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// openConsul builds what gives services their tokens and puts them into Consul. An
// agent without a consul block refuses workloads that have services, by name.
func (a *agent) openConsul(context.Context) error {
	consuls, audiences := map[string]service.Consul{}, map[string]string{}
	for _, c := range a.cfg.Consuls {
		consuls[c.Name], audiences[c.Name] = c.Consul, c.Audience
	}
	a.tokens = tokens.New(tokens.Config{
		Ledger: a.cluster, Consuls: consuls, Audiences: audiences, Identity: a.catalog.DoIdentity, Sealer: a.sealer,
		Events: a.events, Log: a.log.Named("tokens"),
	})
	// The workloads are needed for what there is to keep in sync, and need this: both
	// are built before either is opened.
	a.services = services.New(services.Config{
		Node: a.cfg.Name, ClusterID: a.clusterID, Consuls: consuls,
		Registration: a.catalog.DoRegistration, Bootstraps: a.catalog.DoBootstrap,
		Instances: func() map[string][]registration.Instance { return a.workloads.Instances() },
		Beats:     func() map[string][]registration.Beat { return a.workloads.Beats() },
		Events:    a.events, Log: a.log.Named("services"),
	})
	return nil
}

// identityTimeouts bound a token's derivation, by the name of the consul block.
func (a *agent) identityTimeouts() map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, c := range a.cfg.Consuls {
		out[c.Name] = c.IdentityTimeout
	}
	return out
}

// keepServices begins to keep the catalogs of Consul as they should be.
func (a *agent) keepServices(ctx context.Context) error {
	a.closers.loop(ctx, a.services.Run)
	return nil
}

// sweepTokens is the leader's look for tokens whose workload is gone; nil where no
// service gets one.
func (a *agent) sweepTokens() func(ctx context.Context) error {
	if len(a.cfg.Consuls) == 0 {
		return nil
	}
	return func(ctx context.Context) error {
		report, err := a.tokens.Sweep(ctx, false)
		if err != nil {
			return err
		}
		return report.Err()
	}
}

// jwks are the keys that check the JWTs of logins; nil where no Consul is logged in to.
func (a *agent) jwks() func(ctx context.Context) ([]byte, error) {
	for _, c := range a.cfg.Consuls {
		if c.AuthMethod != "" {
			return a.tokens.JWKS
		}
	}
	return nil
}
