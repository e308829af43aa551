package workload

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/events"
)

// upkeep keeps the services of a workload that runs as they should be, until ctx ends.
// What fails is told and tried again; it never ends the workload.
func (r *run) upkeep(ctx context.Context) {
	var all sync.WaitGroup
	if r.intact && len(r.volumes) > 0 {
		all.Go(func() { r.guardAgain(ctx) })
	}
	for _, s := range r.services {
		if s.meshed {
			all.Go(func() { r.keep(ctx, s) })
		}
	}
	if len(r.services) > 0 {
		all.Go(func() { r.keepRegistered(ctx) })
	}
	<-ctx.Done()
	all.Wait()
}

// keep looks now and then at the service's token and files, the first time at once
// where the host was away.
func (r *run) keep(ctx context.Context, s *svc) {
	pause := r.pause()
	wait := r.untilNext(s)
	if r.resumed {
		wait = 0
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		err := r.mend(ctx, s)
		if ctx.Err() != nil {
			return
		}
		r.say(s, identifying, err)
		if err != nil {
			wait = pause.NextBackOff()
			continue
		}
		pause.Reset()
		wait = r.untilNext(s)
	}
}

// untilNext is the time until the service is looked at again: a while, or less where
// its token is to be renewed before.
func (r *run) untilNext(s *svc) time.Duration {
	wait := time.Duration((0.8 + 0.4*rand.Float64()) * float64(r.limits.look))
	if at := s.renewal(); !at.IsZero() {
		wait = min(wait, max(time.Until(at), r.limits.retryMin))
	}
	return wait
}

// mend makes sure that the service's token is known to Consul and in its file, and that
// the bootstrap was made with it.
func (r *run) mend(ctx context.Context, s *svc) error {
	before := s.Token.ID
	if err := r.ensureToken(ctx, s); err != nil {
		return err
	}
	if before != s.Token.ID {
		r.serviceEvent(s, "identity-replaced", "it has another token now: what was started with the one before has to read its file again")
	}
	if s.proxied && !r.bootstrapped(s) {
		if err := r.bootstrap(ctx, s); err != nil {
			return err
		}
	}
	return r.revokeFormer(ctx, s)
}

// revokeFormer ends the tokens that were replaced. One that expires is left alone until
// then: a proxy that has it in use goes on with it.
func (r *run) revokeFormer(ctx context.Context, s *svc) error {
	for _, t := range slices.Clone(s.Former) {
		if time.Now().Before(t.ExpiresAt) {
			continue
		}
		if err := r.revoke(ctx, s, t); err != nil {
			return err
		}
		err := r.update(r.journal, func(*record) {
			s.Former = slices.DeleteFunc(slices.Clone(s.Former), func(f claim.Token) bool { return f.ID == t.ID })
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// say tells what keeps a service from being as it should, once, and that it is well
// again.
func (r *run) say(s *svc, what activity, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	was := ""
	_ = r.update(nil, func(*record) { was, s.problems[what] = s.problems[what], text })
	switch text {
	case was:
	case "":
		r.serviceEvent(s, string(what)+"-restored", "")
	default:
		r.log.Warn("a service is not as it should be; the workload runs on, and it is tried again", "workload", r.ref, "service", s.name, "error", err)
		r.serviceEvent(s, string(what)+"-failed", text)
	}
}

func (r *run) serviceEvent(s *svc, kind, message string) {
	r.Events.Publish(events.Event{
		Topic: events.TopicService, Type: kind, Subject: s.ID, Message: message,
		Details: map[string]string{"workload": r.ref.String(), "service": s.name, "consul": s.consul},
	})
}
