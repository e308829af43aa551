package servicesteps

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/workload/step"
)

// Keep keeps the token and the files of a running workload's service in order until ctx ends: it
// looks at them now and then, and at once after the host was away. A failure is reported and
// retried.
func (s *Steps) Keep(ctx context.Context, svc *Service) {
	pause := s.Limits.Retry.Start()
	wait := s.untilNext(svc)
	if svc.workload.Resumed() {
		wait = 0
	}
	for step.Sleep(ctx, wait) == nil {
		err := s.repair(ctx, svc)
		if ctx.Err() != nil {
			return
		}
		s.Report(svc, Identifying, err)
		if err != nil {
			wait = pause.NextBackOff()
			continue
		}
		pause.Reset()
		wait = s.untilNext(svc)
	}
}

// untilNext is the time until the next look: with jitter, and earlier when the token is to be
// renewed before.
func (s *Steps) untilNext(svc *Service) time.Duration {
	wait := time.Duration((0.8 + 0.4*rand.Float64()) * float64(s.Limits.Look))
	if at := svc.renewal(); !at.IsZero() {
		wait = min(wait, max(time.Until(at), s.Limits.Retry.Min))
	}
	return wait
}

// repair makes sure that the service's token is known to Consul and in its file, and that the
// bootstrap was made with it and with its other inputs as they are now. The token comes first: a
// bootstrap with one that Consul does not know waits in vain for the proxy's registration.
func (s *Steps) repair(ctx context.Context, svc *Service) error {
	svc.files.Lock()
	defer svc.files.Unlock()
	before := svc.Token.ID
	if err := s.Identify(ctx, svc); err != nil {
		return err
	}
	if before != svc.Token.ID {
		s.event(svc, "identity-replaced",
			"it has another token now: what was started with the earlier one must read its file again")
	}
	if outdated := svc.outdatedBootstrap(); svc.proxied && (outdated || !s.bootstrapped(svc)) {
		before := svc.BootstrapSums[bootstrapFile]
		if err := s.Bootstrap(ctx, svc); err != nil {
			return err
		}
		if outdated && svc.BootstrapSums[bootstrapFile] != before {
			s.event(svc, "bootstrap-replaced", "its proxy must be started again with the new bootstrap")
		}
	}
	return s.revokeFormer(ctx, svc)
}

// revokeFormer revokes the tokens that were replaced. One that expires is left alone until then:
// a proxy may be using it still.
func (s *Steps) revokeFormer(ctx context.Context, svc *Service) error {
	for _, t := range slices.Clone(svc.Former) {
		if time.Now().Before(t.ExpiresAt) {
			continue
		}
		if err := s.revoke(ctx, svc, t); err != nil {
			return err
		}
		err := svc.workload.Save(func() {
			svc.Former = slices.DeleteFunc(slices.Clone(svc.Former), func(f claim.Token) bool { return f.ID == t.ID })
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Report reports what keeps a service from being in order, once for each error, and when it is
// in order again.
func (s *Steps) Report(svc *Service, what Activity, err error) {
	was, text := "", ""
	if err != nil {
		text = err.Error()
	}
	svc.workload.Update(func() { was, svc.problems[what] = svc.problems[what], text })
	switch text {
	case was:
	case "":
		s.event(svc, string(what)+"-restored", "")
	default:
		s.Log.Warn("a service is not in order; the workload runs on, and this is retried",
			"workload", svc.workload.Ref(), "service", svc.Name, "error", err)
		s.event(svc, string(what)+"-failed", text)
	}
}

func (s *Steps) event(svc *Service, kind, message string) { s.eventWith(svc, kind, message, nil) }

func (s *Steps) eventWith(svc *Service, kind, message string, more map[string]string) {
	details := map[string]string{"workload": svc.workload.Ref().String(), "service": svc.Name, "consul": svc.Consul}
	maps.Copy(details, more)
	s.Events.Publish(events.Event{
		Topic: events.TopicService, Type: kind, Subject: svc.ID, Message: message, Details: details,
	})
}

// Unknown lists the tokens of this node in the ledger that belong to none of the records.
func (s *Steps) Unknown(ctx context.Context, records []*Record) ([]claim.Token, error) {
	tokens, err := s.Tokens.OnNode(ctx, s.Node)
	if err != nil {
		return nil, fmt.Errorf("read this node's tokens in the ledger: %w", err)
	}
	return slices.DeleteFunc(tokens, func(t claim.Token) bool {
		return slices.ContainsFunc(records, func(rec *Record) bool {
			return slices.ContainsFunc(rec.tokens(), func(o claim.Token) bool { return o.ID == t.ID })
		})
	}), nil
}

// RevokeAll revokes tokens that no record has, and retries those that fail until ctx ends. The
// ID of a token is never used again, so no later workload can have one of them.
func (s *Steps) RevokeAll(ctx context.Context, tokens []claim.Token) {
	pause := s.Limits.Retry.Start()
	for logged := false; ; logged = true {
		var last error
		tokens = slices.DeleteFunc(tokens, func(t claim.Token) bool {
			bounded, cancel := context.WithTimeout(ctx, s.Limits.Release)
			defer cancel()
			err := s.Tokens.Revoke(bounded, t, "")
			if err != nil {
				last = err
			}
			return err == nil
		})
		if last == nil || ctx.Err() != nil {
			return
		}
		if !logged {
			s.Log.Warn("tokens that no record explains cannot be revoked yet; this is retried", "tokens", len(tokens), "error",
				last)
		}
		if step.Sleep(ctx, pause.NextBackOff()) != nil {
			return
		}
	}
}
