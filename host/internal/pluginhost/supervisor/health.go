package supervisor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pannier/pannier/host/internal/managed"
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
	// lookForHanging is how often the calls are looked at that a generation on probation has not answered.
	lookForHanging = 100 * time.Millisecond
	// defaultSilence is how long a plugin may send no health report before it counts as hung. It promises one
	// every 30 s.
	defaultSilence = 75 * time.Second
	// defaultUnwell is how long a plugin may be unhealthy before it is restarted.
	defaultUnwell = 2 * time.Minute
)

// Watch returns why the generation must be replaced, or nil when ctx ends.
func (g *generation) Watch(ctx context.Context) error {
	silence, unhealthyFor := g.i.sup.silence, g.i.sup.unwell
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	unwell := time.NewTimer(unhealthyFor)
	defer unwell.Stop()
	if g.unhealthySince.IsZero() {
		unwell.Stop()
	} else {
		unwell.Reset(time.Until(g.unhealthySince.Add(unhealthyFor)))
	}
	look := time.NewTicker(lookForHanging)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
			if !g.isCanary && !g.i.procs.MayGoBack(g.Process, g.Run.SHA256) {
				look.Stop()
			} else if g.outcomes.hanging() == "" {
				continue
			} else if why := g.judge(); why != nil {
				return managed.NewAlive(why)
			}
		case <-g.outcomes.changed:
			if why := g.judge(); why != nil {
				return managed.NewAlive(why)
			}
		case h, ok := <-g.health.health:
			if !ok {
				return callError("its health stream ended", g.health.err)
			}
			quiet.Reset(silence)
			if g.isCanary && !h.healthy {
				return managed.NewAlive(fmt.Errorf("it is unhealthy: %s", h.message))
			}
			if g.isCanary {
				continue
			}
			was := g.unhealthySince
			g.report(h)
			switch {
			case h.healthy:
				unwell.Stop()
			case g.i.procs.MayGoBack(g.Process, g.Run.SHA256):
				return managed.NewAlive(fmt.Errorf("it is unhealthy: %s", h.message))
			case was.IsZero():
				unwell.Reset(unhealthyFor)
			}
		case <-quiet.C:
			return fmt.Errorf("it has sent no health report for %v", silence)
		case <-unwell.C:
			return fmt.Errorf("it has been unhealthy for %v: %s", unhealthyFor, g.i.snapshot().Message)
		}
	}
}

// report records a health report of the generation that serves.
func (g *generation) report(h health) {
	was := g.unhealthySince
	if h.healthy {
		g.unhealthySince = time.Time{}
	} else if was.IsZero() {
		g.unhealthySince = time.Now()
	}
	switch {
	case h.healthy && !was.IsZero():
		g.i.set(EventHealthy, "", func(s *Status) { s.State, s.Message = Running, "" })
	case !h.healthy && was.IsZero():
		g.i.set(EventUnhealthy, h.message, func(s *Status) { s.State, s.Message = Unhealthy, h.message })
	case !h.healthy:
		g.i.set("", "", func(s *Status) { s.Message = h.message })
	}
}
