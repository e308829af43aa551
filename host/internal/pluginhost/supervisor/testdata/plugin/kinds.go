package main

import (
	"context"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/sdk/storage"
)

// kinds are the kinds that the fixture can be.
var kinds = map[string]func(*impl) sdk.Plugin{
	"storage":      func(i *impl) sdk.Plugin { return storage.Plugin(i) },
	"identity":     func(i *impl) sdk.Plugin { return identity.Plugin(deriver{lifecycle: i}) },
	"registration": func(i *impl) sdk.Plugin { return registration.Plugin(beater{lifecycle: i}) },
	"bootstrap":    func(i *impl) sdk.Plugin { return bootstrap.Plugin(generator{lifecycle: i}) },
}

// lifecycle is what all kinds have in common.
type lifecycle interface {
	sdk.Validator
	sdk.Configurer
	sdk.HealthReporter
	answer(ctx context.Context) error
}

type deriver struct {
	identity.Identity
	lifecycle
}

func (d deriver) Read(ctx context.Context, _ service.Consul, _ string) (identity.Token, error) {
	return identity.Token{Accessor: "a"}, d.answer(ctx)
}

func (d deriver) Derive(ctx context.Context, _ service.Consul, req identity.DeriveRequest) (identity.Token, string,
	error,
) {
	return identity.Token{Accessor: req.ID}, "secret of " + req.ID, d.answer(ctx)
}

type beater struct {
	registration.Registration
	lifecycle
}

func (b beater) Heartbeat(ctx context.Context, _ service.Consul, _ []registration.Beat) error {
	return b.answer(ctx)
}

type generator struct {
	bootstrap.Bootstrap
	lifecycle
}

func (g generator) Generate(ctx context.Context, _ service.Consul, _ bootstrap.Request) (bootstrap.Result, error) {
	return bootstrap.Result{Bootstrap: []byte("{}")}, g.answer(ctx)
}
