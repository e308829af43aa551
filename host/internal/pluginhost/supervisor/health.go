package supervisor

import (
	"context"
	"fmt"
	"sync"
	"time"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

// attendance is the stream that keeps a plugin alive and tells its health.
type attendance struct {
	cancel context.CancelFunc
	health chan health // the newest; closed when the stream has ended
	ended  sync.WaitGroup
	err    error // why it ended; valid once health is closed
}

type health struct {
	healthy bool
	message string
}

// attend opens the stream. It ends with close, not with ctx.
func attend(ctx context.Context, api pluginv1.PluginServiceClient, orphanTimeout time.Duration) (*attendance, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stream, err := api.Attend(ctx, &pluginv1.AttendRequest{OrphanTimeoutMs: orphanTimeout.Milliseconds()})
	if err != nil {
		cancel()
		return nil, err
	}
	a := &attendance{cancel: cancel, health: make(chan health)}
	a.ended.Go(func() {
		defer close(a.health)
		for {
			res, err := stream.Recv()
			if err != nil {
				a.err = err
				return
			}
			select {
			case a.health <- health{res.GetHealthy(), res.GetMessage()}:
			case <-ctx.Done():
				a.err = ctx.Err()
				return
			}
		}
	})
	return a, nil
}

func (a *attendance) close() {
	a.cancel()
	a.ended.Wait()
}

// next is the health that the plugin tells next.
func (a *attendance) next(ctx context.Context) (health, error) {
	select {
	case h, ok := <-a.health:
		if !ok {
			return health{}, a.err
		}
		return h, nil
	case <-ctx.Done():
		return health{}, ctx.Err()
	}
}

// How a plugin that runs is judged.
const (
	// defaultSilence is the time after which a plugin that has not told its health
	// counts as hung; it promises to tell it every 30 s.
	defaultSilence = 75 * time.Second
	// defaultUnwell is how long a plugin may be unwell before a restart is tried.
	defaultUnwell = 2 * time.Minute
)

// happened is what ends a watch.
type happened struct {
	lost  error // the generation must be replaced
	sick  bool  // its process lives
	order *order
}

// watch returns when the generation must be replaced or something else may have to
// run, when an operator wants something, or when ctx ends.
func (i *instance) watch(ctx context.Context, gen *generation) happened {
	silence, unhealthyFor := i.sup.silence, i.sup.unwell
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	unwell := time.NewTimer(unhealthyFor)
	defer unwell.Stop()
	if i.unwell.IsZero() {
		unwell.Stop()
	} else {
		unwell.Reset(time.Until(i.unwell.Add(unhealthyFor)))
	}
	for {
		select {
		case <-ctx.Done():
			return happened{}
		case <-i.looks:
			return happened{}
		case o := <-i.orders:
			return happened{order: &o}
		case <-gen.run.proc.Done():
			return happened{lost: fmt.Errorf("the process ended: %s", gen.run.proc.Exit())}
		case <-gen.over:
			return happened{sick: true, lost: gen.run.meter.why}
		case h, ok := <-gen.health.health:
			if !ok {
				return happened{lost: i.streamLost(ctx, gen)}
			}
			quiet.Reset(silence)
			was := i.unwell
			i.health(h)
			switch {
			case h.healthy:
				unwell.Stop()
			case i.onTrial(gen):
				return happened{sick: true, lost: fmt.Errorf("it is unhealthy: %s", h.message)}
			case was.IsZero():
				unwell.Reset(unhealthyFor)
			}
		case <-quiet.C:
			return happened{lost: fmt.Errorf("it has not told its health for %v", silence)}
		case <-unwell.C:
			return happened{lost: fmt.Errorf("it has been unhealthy for %v: %s", unhealthyFor, i.snapshot().Message)}
		}
	}
}

// streamLost tells why the health stream ended. Mostly the process died, which
// is seen a moment later.
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

// health takes note of what the plugin says of itself.
func (i *instance) health(h health) {
	was := i.unwell
	if h.healthy {
		i.unwell = time.Time{}
	} else if was.IsZero() {
		i.unwell = time.Now()
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
