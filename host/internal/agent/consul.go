package agent

import (
	"context"
	"errors"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/registration"
)

// noConsul is what workloads have of Consul on an agent without a consul block.
type noConsul struct{}

var errNoConsul = errors.New("the agent has no consul block")

func (noConsul) Intend(context.Context, claim.Token) error { return errNoConsul }

func (noConsul) Derive(context.Context, claim.Token) (claim.Token, string, error) {
	return claim.Token{}, "", errNoConsul
}

func (noConsul) Read(context.Context, string, string) error            { return errNoConsul }
func (noConsul) Revoke(context.Context, claim.Token, string) error     { return errNoConsul }
func (noConsul) OnNode(context.Context, string) ([]claim.Token, error) { return nil, nil }
func (noConsul) Check(string) error                                    { return errNoConsul }
func (noConsul) Deregister(context.Context, string, string) error      { return errNoConsul }
func (noConsul) Changed()                                              {}

func (noConsul) Register(context.Context, string, registration.Instance) (string, error) {
	return "", errNoConsul
}

func (noConsul) Bootstrap(context.Context, string, bootstrap.Request) ([]byte, error) {
	return nil, errNoConsul
}
