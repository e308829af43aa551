package servicesteps

import (
	"context"
	"fmt"

	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// Register registers the service and its sidecar in Consul, as the spec has them now.
func (s *Steps) Register(ctx context.Context, svc *Service) error {
	var i registration.Instance
	svc.workload.View(func() { i = svc.instance(svc.Service) })
	var proxyID string
	err := s.Limits.Retry.Retry(ctx, s.Limits.Register, step.Retryable, func(ctx context.Context) (err error) {
		proxyID, err = s.Services.Register(ctx, svc.Consul, i)
		return err
	})
	if err != nil {
		return fmt.Errorf("register %s in Consul %q: %w", svc, svc.Consul, err)
	}
	svc.workload.Update(func() { svc.Registered, svc.ProxyID = &i.Service, proxyID })
	s.Services.Changed()
	return nil
}

// Deregister removes the service and its sidecar from Consul.
func (s *Steps) Deregister(ctx context.Context, svc *Service) error {
	ctx, cancel := context.WithTimeout(ctx, s.Limits.Release)
	defer cancel()
	if err := s.Services.Deregister(ctx, svc.Consul, svc.ID); err != nil {
		return fmt.Errorf("deregister %s from Consul %q: %w", svc, svc.Consul, err)
	}
	svc.workload.Update(func() { svc.Registered, svc.ProxyID = nil, "" })
	s.Services.Changed()
	return nil
}

// Instance is the service as it is registered in Consul. It must be registered, and the
// workload's lock is held.
func (s *Service) Instance() registration.Instance { return s.instance(*s.Registered) }

func (s *Service) instance(as service.Service) registration.Instance {
	ref := s.workload.Ref()
	return registration.Instance{ID: s.ID, Namespace: ref.Namespace, Workload: ref.ID, Service: as}
}

func (s *Service) String() string {
	return fmt.Sprintf("service %q of workload %q", s.Name, s.workload.Ref())
}
