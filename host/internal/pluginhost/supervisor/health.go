package supervisor

import (
	"context"
	"fmt"
	"sync"
	"time"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

// healthStream is the stream that keeps a plugin alive and carries its health reports.
type healthStream struct {
	cancel context.CancelFunc
	health chan health // the newest; closed when the stream has ended
	ended  sync.WaitGroup
	err    error // why it ended; valid once health is closed
}

type health struct {
	healthy bool
	message string
}

// openHealthStream opens the stream. The stream ends with close, not with ctx.
func openHealthStream(ctx context.Context, api pluginv1.PluginServiceClient,
	orphanTimeout time.Duration,
) (*healthStream, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stream, err := api.Attend(ctx, &pluginv1.AttendRequest{OrphanTimeoutMs: orphanTimeout.Milliseconds()})
	if err != nil {
		cancel()
		return nil, err
	}
	s := &healthStream{cancel: cancel, health: make(chan health)}
	s.ended.Go(func() {
		defer close(s.health)
		for {
			res, err := stream.Recv()
			if err != nil {
				s.err = err
				return
			}
			select {
			case s.health <- health{res.GetHealthy(), res.GetMessage()}:
			case <-ctx.Done():
				s.err = ctx.Err()
				return
			}
		}
	})
	return s, nil
}

func (s *healthStream) close() {
	s.cancel()
	s.ended.Wait()
}

// next waits for the next health report.
func (s *healthStream) next(ctx context.Context) (health, error) {
	select {
	case h, ok := <-s.health:
		if !ok {
			return health{}, s.err
		}
		return h, nil
	case <-ctx.Done():
		return health{}, ctx.Err()
	}
}

// Time limits for a running plugin.
const (
	// defaultSilence is how long a plugin may send no health report before it counts as hung. It promises one
	// every 30 s.
	defaultSilence = 75 * time.Second
	// defaultUnwell is how long a plugin may be unhealthy before it is restarted.
	defaultUnwell = 2 * time.Minute
)

// watchResult says why watch returned.
type watchResult struct {
	lost    error // the generation must be replaced
	alive   bool  // its process still runs
	request *request

	canaryLost bool // the canary must end
}

// watch returns when the generation must be replaced, when another binary may have to run, when an operator
// requests something, when the canary must end, or when ctx ends.
func (i *instance) watch(ctx context.Context, gen *generation) watchResult {
	silence, unhealthyFor := i.sup.silence, i.sup.unwell
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	unwell := time.NewTimer(unhealthyFor)
	defer unwell.Stop()
	if i.unhealthySince.IsZero() {
		unwell.Stop()
	} else {
		unwell.Reset(time.Until(i.unhealthySince.Add(unhealthyFor)))
	}
	var canaryLost <-chan struct{}
	if c := i.canary.Load(); c != nil {
		canaryLost = c.lost
	}
	for {
		select {
		case <-ctx.Done():
			return watchResult{}
		case <-canaryLost:
			return watchResult{canaryLost: ctx.Err() == nil}
		case <-i.rechecks:
			return watchResult{}
		case o := <-i.requests:
			return watchResult{request: &o}
		case <-gen.run.proc.Done():
			return watchResult{lost: fmt.Errorf("the process ended: %s", gen.run.proc.Exit())}
		case <-gen.overLimit:
			return watchResult{alive: true, lost: gen.run.meter.why}
		case <-gen.outcomes.changed:
			if why := i.judge(gen); why != nil {
				return watchResult{alive: true, lost: why}
			}
		case h, ok := <-gen.health.health:
			if !ok {
				return watchResult{lost: i.streamLost(ctx, gen)}
			}
			quiet.Reset(silence)
			was := i.unhealthySince
			i.health(h)
			switch {
			case h.healthy:
				unwell.Stop()
			case i.onProbation(gen):
				return watchResult{alive: true, lost: fmt.Errorf("it is unhealthy: %s", h.message)}
			case was.IsZero():
				unwell.Reset(unhealthyFor)
			}
		case <-quiet.C:
			return watchResult{lost: fmt.Errorf("it has sent no health report for %v", silence)}
		case <-unwell.C:
			return watchResult{lost: fmt.Errorf("it has been unhealthy for %v: %s", unhealthyFor, i.snapshot().Message)}
		}
	}
}

// streamLost returns why the health stream ended. Usually the process died, which is noticed a moment later.
func (i *instance) streamLost(ctx context.Context, gen *generation) error {
	wait, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	select {
	case <-gen.run.proc.Done():
		return fmt.Errorf("the process ended: %s", gen.run.proc.Exit())
	case <-wait.Done():
		return callError("its health stream ended", gen.health.err)
	}
}

// health records a health report.
func (i *instance) health(h health) {
	was := i.unhealthySince
	if h.healthy {
		i.unhealthySince = time.Time{}
	} else if was.IsZero() {
		i.unhealthySince = time.Now()
	}
	switch {
	case h.healthy && !was.IsZero():
		i.set(EventHealthy, "", func(s *Status) { s.State, s.Message = Running, "" })
	case !h.healthy && was.IsZero():
		i.set(EventUnhealthy, h.message, func(s *Status) { s.State, s.Message = Unhealthy, h.message })
	case !h.healthy:
		i.set("", "", func(s *Status) { s.Message = h.message })
	}
}
