package services

import (
	"context"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// Heartbeat implements registration.Registration. A check that is not there is left to
// Sync.
func (s *Services) Heartbeat(ctx context.Context, c service.Consul, beats []registration.Beat) error {
	agent, err := s.agent(c)
	if err != nil {
		return err
	}
	work := newWork(ctx)
	for _, b := range beats {
		work.do(func(ctx context.Context) error {
			health := api.HealthCritical
			if b.Healthy {
				health = api.HealthPassing
			}
			err := agent.error(agent.Agent().UpdateTTLOpts(processCheck(b.ID), b.Output, health, query(ctx)), "tell the health of service %q", b.ID)
			if status.Code(err) == codes.NotFound {
				return nil
			}
			return err
		})
	}
	return work.wait()
}
