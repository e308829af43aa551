package services

import (
	"context"
	"time"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

const (
	// minPause is the least pause between heartbeats: Consul takes no check below a second.
	minPause = 300 * time.Millisecond
	// beatTimeout bounds one heartbeat that has a short interval.
	beatTimeout = 5 * time.Second
)

// beat tells Consul how the processes are, where a service has a check of type
// process: at once after a change, and three times in the shortest check's interval.
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
		if checked[b.ID] {
			beats = append(beats, b)
		}
	}
	if len(beats) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return k.r.cfg.Registration(ctx, func(ctx context.Context, c registration.Registration) error {
		return c.Heartbeat(ctx, k.consul, beats)
	})
}

// processChecks are the instances that have a check of type process, and a third of
// the shortest interval of these.
func processChecks(instances []registration.Instance) (every time.Duration, checked map[string]bool) {
	checked = map[string]bool{}
	for _, i := range instances {
		for _, c := range i.Service.Checks {
			interval, err := time.ParseDuration(c.Interval)
			if c.Type != service.CheckProcess || err != nil {
				continue // an interval that is none was refused at the start
			}
			if len(checked) == 0 || interval/3 < every {
				every = interval / 3
			}
			checked[i.ID] = true
		}
	}
	return max(every, minPause), checked
}
