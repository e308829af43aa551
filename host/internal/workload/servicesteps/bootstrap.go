package servicesteps

import (
	"context"
	"fmt"

	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/sdk/bootstrap"
)

// proxyAddress is where a proxy serves its admin API and its readiness, for this node alone.
const proxyAddress = "127.0.0.1"

// Bootstrap makes the file that the service's proxy is started with. The token in it is the one
// that identify has written; where Consul has ACLs disabled there is none.
func (s *Steps) Bootstrap(ctx context.Context, svc *Service) error {
	req := bootstrap.Request{
		Admin: bootstrap.Bind{Address: proxyAddress, Port: svc.AdminPort},
		Ready: bootstrap.Bind{Address: proxyAddress, Port: svc.ReadyPort},
	}
	svc.workload.View(func() { req.ProxyID = svc.ProxyID })
	if svc.TokenSum != "" {
		req.TokenFile = s.SecretsDir.Path(svc.place(), tokenFile)
	}
	var file []byte
	err := s.Limits.Retry.Retry(ctx, s.Limits.Bootstrap, step.Retryable, func(ctx context.Context) (err error) {
		file, err = s.Services.Bootstrap(ctx, svc.Consul, req)
		return err
	})
	if err != nil {
		return fmt.Errorf("make the bootstrap of %s: %w", svc, err)
	}
	if err := svc.workload.Save(func() { svc.BootstrapSum = digest(file) }); err != nil {
		return err
	}
	failpoint.Here("bootstrap", "made")
	return s.SecretsDir.Write(svc.place(), bootstrapFile, file, svc.uid)
}

// RemoveBootstrap removes the file.
func (s *Steps) RemoveBootstrap(_ context.Context, svc *Service) error {
	if err := s.SecretsDir.RemoveFile(svc.place(), bootstrapFile); err != nil {
		return fmt.Errorf("remove the bootstrap of %s: %w", svc, err)
	}
	svc.workload.Update(func() { svc.BootstrapSum = "" })
	return nil
}

// bootstrapped reports whether the file is what was written.
func (s *Steps) bootstrapped(svc *Service) bool {
	raw, err := s.SecretsDir.Read(svc.place(), bootstrapFile, svc.uid)
	return err == nil && digest(raw) == svc.BootstrapSum
}
