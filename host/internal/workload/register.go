package workload

import (
	"context"
	"fmt"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// register puts the service and its sidecar into Consul, as the spec has them now.
func (r *run) register(ctx context.Context, s *svc) error {
	i := r.registration(s)
	var proxyID string
	err := r.retry(ctx, r.limits.register, recoverable, func(ctx context.Context) (err error) {
		proxyID, err = r.Services.Register(ctx, s.consul, i)
		return err
	})
	if err != nil {
		return fmt.Errorf("register service %q of %s in Consul %q: %w", s.name, r.instance, s.consul, err)
	}
	err = r.update(nil, func(*record) { s.Registered, s.ProxyID = &i.Service, proxyID })
	r.Services.Changed()
	return err
}

// registration is the service as the spec has it now.
func (r *run) registration(s *svc) registration.Instance {
	r.instance.mu.Lock()
	defer r.instance.mu.Unlock()
	return r.asInstance(s, s.Service)
}

func (i *instance) asInstance(s *svc, as service.Service) registration.Instance {
	return registration.Instance{ID: s.ID, Namespace: i.ref.Namespace, Workload: i.ref.ID, Service: as}
}

// deregister takes the service and its sidecar out of Consul.
func (r *run) deregister(ctx context.Context, s *svc) error {
	ctx, cancel := context.WithTimeout(ctx, r.limits.release)
	defer cancel()
	if err := r.Services.Deregister(ctx, s.consul, s.ID); err != nil {
		return fmt.Errorf("take service %q of %s out of Consul %q: %w", s.name, r.instance, s.consul, err)
	}
	err := r.update(nil, func(*record) { s.Registered, s.ProxyID = nil, "" })
	r.Services.Changed()
	return err
}
