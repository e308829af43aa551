package services

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/pannier/pannier/internal/cabundle"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

const (
	// syncWait bounds one blocking query. Consul may wait for a sixteenth longer.
	syncWait = 2 * time.Minute
	// syncMargin is the time within a call's deadline that a sync has for its work after its query.
	syncMargin = 20 * time.Second
	// syncEvery is the minimum time between two syncs of a catalog that changes all the time.
	syncEvery = time.Second
)

// keep makes Consul match the instances whenever either changes. It stops asking when neither has any.
func (k *keeper) keep(ctx context.Context, owner registration.Owner) {
	retry := &backoff.ExponentialBackOff{
		InitialInterval: 100 * time.Millisecond, MaxInterval: 30 * time.Second,
		Multiplier: 2, RandomizationFactor: 0.3,
	}
	var index uint64
	for alive := ctx.Err() == nil; alive; {
		if k.busy() {
			alive = rest(ctx, settle, nil)
			continue
		}
		began := time.Now()
		next, n, changed, err := k.sync(ctx, owner, index)
		switch {
		case ctx.Err() != nil:
			return
		case changed:
			alive = rest(ctx, -1, k.wakeSync)
		case err != nil:
			k.report(syncing, err)
			index = 0
			alive = rest(ctx, retry.NextBackOff(), k.wakeSync)
		case n == 0:
			k.report(syncing, nil)
			retry.Reset()
			index = 0
			alive = rest(ctx, -1, k.wakeSync)
		default:
			k.report(syncing, nil)
			retry.Reset()
			index = next
			alive = rest(ctx, max(0, syncEvery-time.Since(began)), k.wakeSync)
		}
	}
}

// watchFiles starts a sync when the token or a CA was replaced: services are registered with the one, and proxies
// verify Consul with the other.
func (k *keeper) watchFiles(ctx context.Context) {
	var before []byte
	for first := true; ; first = false {
		var now []byte
		for _, path := range []string{k.consul.TokenFile, k.consul.CAFile, k.consul.GRPCCAFile} {
			text, _ := cabundle.Read(path) // the sync reports what cannot be read
			now = append(now, text...)
		}
		if !first && !bytes.Equal(before, now) {
			k.touch()
		}
		before = now
		if !rest(ctx, syncEvery, nil) {
			return
		}
	}
}

// sync makes one call of Sync, for n instances. changed is true if a change cancelled it.
func (k *keeper) sync(ctx context.Context, owner registration.Owner, index uint64) (next uint64, n int, changed bool,
	err error,
) {
	ctx, touched, end := k.begin(ctx)
	defer end()
	if touched {
		index = 0 // it belongs to another list
	}
	req := registration.SyncRequest{Owner: owner, Instances: k.instances()}
	for n := range req.Instances {
		req.Instances[n].Owner = owner
	}
	var changes []registration.Change
	err = k.r.cfg.Registration(ctx, k.name, func(ctx context.Context, c registration.Registration) (err error) {
		if index > 0 {
			req.Index, req.Wait = index, waitWithin(ctx)
		}
		next, changes, err = c.Sync(ctx, k.consul, req)
		return err
	})
	conflicts := map[registration.Action]map[string]string{registration.Conflict: {}, registration.IntentionsConflict: {}}
	for _, c := range changes {
		if found := conflicts[c.Action]; found != nil {
			found[c.ID] = c.Reason
			continue
		}
		if c.Action == registration.Reconfigured {
			k.r.cfg.Reconfigured(k.name, c.ID, c.ProxyDigest)
			continue
		}
		k.r.cfg.Log.Info("a service was brought in sync", "consul", k.name, "id", c.ID, "action", c.Action, "reason",
			c.Reason)
		k.event(string(c.Action), c.ID, fmt.Sprintf("service %s was %s in Consul %q: %s", c.ID, c.Action, k.name, c.Reason))
	}
	for what, found := range conflicts {
		if err == nil {
			k.conflict(what, found)
		}
	}
	return next, len(req.Instances), errors.Is(context.Cause(ctx), errChanged), err
}

// waitWithin returns how long a query may block within the deadline of its call.
func waitWithin(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return syncWait
	}
	return max(0, min(syncWait, time.Until(deadline)-syncMargin))
}

const (
	// minPause is the minimum pause between heartbeats: Consul allows no check interval below a second.
	minPause = 300 * time.Millisecond
	// beatTimeout bounds one heartbeat of a check with a short interval.
	beatTimeout = 5 * time.Second
)

// beat reports the processes' health to Consul, if a service has a check of type process: at once after a change,
// and three times in the interval of the most frequent check.
func (k *keeper) beat(ctx context.Context) {
	for alive := ctx.Err() == nil; alive; {
		every, checked := processChecks(k.instances())
		if len(checked) == 0 {
			k.report(beating, nil)
			alive = rest(ctx, -1, k.wakeBeat)
			continue
		}
		err := k.heartbeat(ctx, max(every, beatTimeout), checked)
		if ctx.Err() != nil {
			return
		}
		k.report(beating, err)
		alive = rest(ctx, every, k.wakeBeat)
	}
}

func (k *keeper) heartbeat(ctx context.Context, timeout time.Duration, checked map[string]bool) error {
	var beats []registration.Beat
	for _, b := range k.r.cfg.Beats()[k.name] {
		if checked[b.ID] && k.conflictOf(registration.Conflict, b.ID) == "" {
			beats = append(beats, b)
		}
	}
	if len(beats) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return k.r.cfg.Registration(ctx, k.name, func(ctx context.Context, c registration.Registration) error {
		return c.Heartbeat(ctx, k.consul, beats)
	})
}

// processChecks returns the instances that have a check of type process, and a third of the shortest interval of
// these.
func processChecks(instances []registration.Instance) (every time.Duration, checked map[string]bool) {
	checked = map[string]bool{}
	for _, i := range instances {
		for _, c := range i.Service.Checks {
			interval, err := time.ParseDuration(c.Interval)
			if c.Type != service.CheckProcess || err != nil {
				continue // invalid intervals were refused at the start
			}
			if len(checked) == 0 || interval/3 < every {
				every = interval / 3
			}
			checked[i.ID] = true
		}
	}
	return max(every, minPause), checked
}
