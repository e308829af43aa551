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

// kinds are the kinds that the fixture can be. Each has one call that answers.
var kinds = map[string]func(*impl) sdk.Plugin{
	"storage":      func(i *impl) sdk.Plugin { return storage.Plugin(i) },
	"identity":     func(i *impl) sdk.Plugin { return identity.Plugin(reader{life: i}) },
	"registration": func(i *impl) sdk.Plugin { return registration.Plugin(beater{life: i}) },
	"bootstrap":    func(i *impl) sdk.Plugin { return bootstrap.Plugin(generator{life: i}) },
}

// life is the part that all kinds have in common.
type life interface {
	sdk.Validator
	sdk.Configurer
	sdk.HealthReporter
	answer(ctx context.Context) error // of the kind's one call
}

type reader struct {
	identity.Identity
	life
}

func (r reader) Read(ctx context.Context, _ service.Consul, _ string) (identity.Token, error) {
	return identity.Token{Accessor: "a"}, r.answer(ctx)
}

func (r reader) Derive(ctx context.Context, _ service.Consul, req identity.DeriveRequest) (identity.Token, string,
	error,
) {
	return identity.Token{Accessor: req.ID}, "secret of " + req.ID, r.answer(ctx)
}

type beater struct {
	registration.Registration
	life
}

func (b beater) Heartbeat(ctx context.Context, _ service.Consul, _ []registration.Beat) error {
	return b.answer(ctx)
}

type generator struct {
	bootstrap.Bootstrap
	life
}

func (g generator) Generate(ctx context.Context, _ service.Consul, _ bootstrap.Request) ([]byte, error) {
	return []byte("{}"), g.answer(ctx)
}
