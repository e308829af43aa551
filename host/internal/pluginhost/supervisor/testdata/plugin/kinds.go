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
}

type reader struct {
	identity.Identity
	life
}

func (reader) Read(context.Context, service.Consul, string) (identity.Token, error) {
	return identity.Token{Accessor: "a"}, nil
}

type beater struct {
	registration.Registration
	life
}

func (beater) Heartbeat(context.Context, service.Consul, []registration.Beat) error { return nil }

type generator struct {
	bootstrap.Bootstrap
	life
}

func (generator) Generate(context.Context, service.Consul, bootstrap.Request) ([]byte, error) {
	return []byte("{}"), nil
}
