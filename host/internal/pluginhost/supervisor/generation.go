package supervisor

import (
	"context"
	"fmt"
	"sync"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

// generation is one running process of a plugin and the connection to it. A caller acquires it before a call and
// releases it afterwards. A retired generation is stopped when its last user has released it, or at a deadline.
type generation struct {
	name      string // the plugin's
	metrics   *metrics
	record    *runRecord
	number    uint64
	kind      string
	version   string
	identity  string // what it says it is
	sha       string
	startedAt time.Time
	pid       int
	started   bool // by this host, not an earlier one

	run         *pluginRunner
	client      *goplugin.Client
	proto       goplugin.ClientProtocol
	conn        *grpc.ClientConn
	api         pluginv1.PluginServiceClient
	health      *healthStream
	events      *follower       // nil before it serves, and if it has none
	overLimit   <-chan struct{} // closed when it uses more than it may
	firstHealth health          // what it reported when it came up
	outcomes    *outcomes

	abandoned context.Context    // ends when the calls that are left are given up
	abandon   context.CancelFunc // ends abandoned

	mu       sync.Mutex
	users    int
	retired  bool
	retiring chan struct{} // closed when it is retired
	drained  chan struct{} // closed when it is retired and has no users left
}

// describe describes a generation in messages.
func (g *generation) describe() string {
	return fmt.Sprintf("generation %d (version %s, sha256 %.12s)", g.number, g.version, g.sha)
}

// acquire adds a user. It fails on a retired generation.
func (g *generation) acquire() (release func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.retired {
		return nil, false
	}
	g.users++
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.users--
		g.checkDrained()
	}), true
}

// retire makes acquire fail from now on.
func (g *generation) retire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.retired {
		g.retired = true
		close(g.retiring)
		g.checkDrained()
	}
}

func (g *generation) checkDrained() {
	if g.retired && g.users == 0 {
		close(g.drained)
	}
}

// ended says whether the process has ended.
func (g *generation) ended() bool {
	select {
	case <-g.run.proc.Done():
		return true
	default:
		return false
	}
}

func (g *generation) userCount() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.users
}

// drain waits until a retired generation has no users, exceeds a limit, timeout has passed, or drop is closed. It
// returns whether there is nothing more to wait for: anything but the timeout.
func (g *generation) drain(timeout time.Duration, drop <-chan struct{}) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-g.drained:
	case <-timer.C:
		return false
	case <-g.overLimit:
	case <-drop:
	}
	return true
}

// answerAfter is how long a generation drains before it is asked whether it hangs.
const answerAfter = time.Second

// answers says whether the process answers a call that does nothing, within timeout.
func (g *generation) answers(ctx context.Context, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := g.api.Info(ctx, &pluginv1.InfoRequest{})
	return err == nil
}

// stop asks the process to finish its calls and end, kills its process group when ctx ends, and cleans up.
func (g *generation) stop(ctx context.Context) error {
	g.health.close()
	g.events.opened(ctx) // otherwise the plugin would not wait until we have its last events
	if _, err := g.api.Stop(ctx, &pluginv1.StopRequest{}); err == nil {
		select {
		case <-g.run.proc.Done():
		case <-ctx.Done():
		}
	}
	err := g.run.stop(ctx)
	g.close()
	return err
}

// detach leaves the process running for the next host.
func (g *generation) detach() {
	g.health.close()
	g.events.close()
	g.run.detach()
	// Close the connection first: proto.Close would ask the plugin to end, and cannot without one. The rest of it
	// ends go-plugin's goroutines.
	_ = g.conn.Close()
	_ = g.proto.Close()
}

// close ends what go-plugin runs for a process that is gone.
func (g *generation) close() {
	g.metrics.forget(g)
	g.health.close()
	g.events.finish(lastEvents)
	g.run.detach()
	g.client.Kill()
}
