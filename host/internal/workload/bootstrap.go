package workload

import (
	"context"
	"fmt"

	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/sdk/bootstrap"
)

// proxyAddress is where a proxy's admin API and its readiness are: they are for this
// node alone.
const proxyAddress = "127.0.0.1"

// bootstrap makes the file that the service's proxy is started with. The token in it
// is the one that identify has written; where Consul has ACLs disabled there is none.
func (r *run) bootstrap(ctx context.Context, s *svc) error {
	req := bootstrap.Request{
		ProxyID: r.proxyID(s),
		Admin:   bootstrap.Bind{Address: proxyAddress, Port: s.AdminPort},
		Ready:   bootstrap.Bind{Address: proxyAddress, Port: s.ReadyPort},
	}
	if s.TokenSum != "" {
		req.TokenFile = r.SecretsDir.Path(r.place(s), tokenFile)
	}
	var file []byte
	err := r.retry(ctx, r.limits.bootstrap, recoverable, func(ctx context.Context) (err error) {
		file, err = r.Services.Bootstrap(ctx, s.consul, req)
		return err
	})
	if err != nil {
		return fmt.Errorf("make the bootstrap of service %q of %s: %w", s.name, r.instance, err)
	}
	if err := r.update(r.journal, func(*record) { s.BootstrapSum = digest(file) }); err != nil {
		return err
	}
	failpoint.Here("bootstrap", "made")
	return r.SecretsDir.Write(r.place(s), bootstrapFile, file, r.rec.UID)
}

func (r *run) proxyID(s *svc) string {
	r.instance.mu.Lock()
	defer r.instance.mu.Unlock()
	return s.ProxyID
}

// dropBootstrap takes the file away.
func (r *run) dropBootstrap(_ context.Context, s *svc) error {
	if err := r.SecretsDir.RemoveFile(r.place(s), bootstrapFile); err != nil {
		return fmt.Errorf("remove the bootstrap of service %q of %s: %w", s.name, r.instance, err)
	}
	return r.update(nil, func(*record) { s.BootstrapSum = "" })
}

// bootstrapped says whether the file is what was written.
func (r *run) bootstrapped(s *svc) bool {
	raw, err := r.SecretsDir.Read(r.place(s), bootstrapFile, r.rec.UID)
	return err == nil && digest(raw) == s.BootstrapSum
}
