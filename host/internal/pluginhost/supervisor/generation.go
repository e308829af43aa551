package supervisor

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/managed/goplugin"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// generation is one running process of a plugin and the connection to it. A caller acquires it before a call and
// releases it afterwards. A retired generation is stopped when its last user has released it, or at a deadline.
type generation struct {
	*managed.Process
	*managed.Users
	i        *instance
	identity string // what it says it is

	client         *goplugin.Client
	conn           *grpc.ClientConn
	api            pluginv1.PluginServiceClient
	health         *healthStream
	events         *follower // nil before it serves, and if it has none
	firstHealth    health    // what it reported when it came up
	outcomes       *outcomes
	unhealthySince time.Time // zero: it is healthy
	isCanary       bool      // it gets a part of the calls, and ends at its first fault
	hangs          bool      // it does not answer calls, which are given up at once when it is replaced
	degraded       bool      // it fails more calls than the generation before; reported

	abandoned context.Context    // ends when the calls that are left are given up
	abandon   context.CancelFunc // ends abandoned
}

// describe describes a generation in messages.
func (g *generation) describe() string { return describe(g.Side()) }

func describe(s Side) string {
	return fmt.Sprintf("generation %d (version %s, sha256 %.12s)", s.Generation, s.Version, s.SHA256)
}

// Calls returns how many calls it has answered, and how many of them failed.
func (g *generation) Calls() (calls, failed int) { return g.outcomes.answered() }

// Drain waits until a retired generation has no users: up to grace or, without it, DrainTimeout, but StopTimeout if the
// process is unwell or does not answer. Calls that are left then are given up.
func (g *generation) Drain(ctx context.Context, grace *time.Duration) {
	cfg := g.i.sup.cfg
	limit := cfg.DrainTimeout
	switch {
	case g.hangs:
		limit = 0
	case grace != nil:
		limit = *grace
	case !g.unhealthySince.IsZero():
		limit = cfg.StopTimeout
	case !g.drainedIn(ctx, answerAfter) && !g.answers(ctx, cfg.StopTimeout):
		limit = 0
	}
	g.drainedIn(ctx, limit)
	g.abandon()
}

// drainedIn waits until a retired generation has no users, exceeds a limit, timeout has passed, or ctx has ended. It
// returns whether there is nothing more to wait for: anything but the timeout.
func (g *generation) drainedIn(ctx context.Context, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-g.Drained():
	case <-timer.C:
		return false
	case <-g.OverLimit():
	case <-ctx.Done():
	}
	return true
}

// answerAfter is how long a generation drains before it is asked whether it hangs.
const answerAfter = time.Second

// answers reports whether the process answers a call that does nothing, within timeout.
func (g *generation) answers(ctx context.Context, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := g.api.Info(ctx, &pluginv1.InfoRequest{})
	return err == nil
}

// Stop asks the process to finish its calls and end.
func (g *generation) Stop(ctx context.Context) error {
	g.health.close()
	g.events.opened(ctx) // otherwise the plugin would not wait until we have its last events
	if hangUp, err := wire.Stop(ctx, g.conn); err == nil {
		drained := g.Drained()
		if g.Retire(); !hangUp {
			drained = nil
		}
		select {
		case <-drained:
			_ = g.conn.Close()
		case <-g.Done():
		case <-ctx.Done():
		}
		select {
		case <-g.Done():
		case <-ctx.Done():
		}
	}
	return nil // what is left is ended
}

// Close ends what this host has for the process, which has ended or runs on.
func (g *generation) Close() {
	g.i.sup.metrics.forget(g)
	g.health.close()
	if g.Ended() {
		g.events.finish(lastEvents)
	} else {
		g.events.close()
	}
	g.client.Close()
}
