package workload

import (
	"context"
	"errors"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/step"
)

// claim takes all the workload's claims and records the tokens that Consul will be asked for, in
// one ledger command.
func (r *run) claim(ctx context.Context) error {
	want, err := r.m.volumes.Want(ctx, r.volumes)
	if err != nil {
		return step.NoEffect(err)
	}
	tokens, fresh, err := r.markTokens()
	if err != nil {
		return err
	}
	number, err := r.m.volumes.Claim(ctx, r.volumes, r.inLedger(), want, tokens)
	if step.HadNoEffect(err) {
		return errors.Join(err, r.unmarkTokens(fresh))
	}
	if number != 0 {
		r.Update(func() { r.rec.Run = number })
	}
	return err
}

// markTokens gives the identify steps an intent before the ledger has their tokens: from then on
// they are to be undone. fresh are the services that had none.
func (r *run) markTokens() (tokens []claim.Token, fresh []*servicesteps.Service, err error) {
	for _, s := range r.services {
		if !s.Meshed() {
			continue
		}
		tokens = append(tokens, s.Token)
		if s.Steps[identifyStep] == "" {
			fresh = append(fresh, s)
		}
	}
	if len(fresh) == 0 {
		return tokens, nil, nil
	}
	return tokens, fresh, r.Save(func() {
		for _, s := range fresh {
			s.Steps[identifyStep] = step.Intended
		}
	})
}

// unmarkTokens removes the intents: the ledger has refused the tokens.
func (r *run) unmarkTokens(fresh []*servicesteps.Service) error {
	if len(fresh) == 0 {
		return nil
	}
	return r.Save(func() {
		for _, s := range fresh {
			delete(s.Steps, identifyStep)
		}
	})
}

// release releases the claims of the volumes that are unmounted.
func (r *run) release(ctx context.Context) error {
	if r.endReportErr != nil {
		return fmt.Errorf("the claims are kept: %w", r.endReportErr)
	}
	return r.m.volumes.Release(ctx, r.volumes)
}
