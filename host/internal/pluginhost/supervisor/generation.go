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

// generation is one running process of a plugin and the connection to it. Who
// holds a lease on it may call it; it is stopped when it is retired and the last
// lease is returned, or when a deadline has passed.
type generation struct {
	record    *runRecord
	number    uint64
	launch    string // digest of how it was started
	kind      string
	version   string
	sha       string
	startedAt time.Time
	pid       int

	run         *pluginRunner
	client      *goplugin.Client
	proto       goplugin.ClientProtocol
	conn        *grpc.ClientConn
	api         pluginv1.PluginServiceClient
	health      *healthStream
	events      *follower       // nil before it serves, and where it has none
	overLimit   <-chan struct{} // closed when it uses more than it may
	firstHealth health          // what it said of itself when it came up

	mu       sync.Mutex
	users    int
	retired  bool
	retiring chan struct{} // closed when it is retired
	drained  chan struct{} // closed when it is retired and no lease is left
}

// describe is a generation for people.
func (g *generation) describe() string {
	return fmt.Sprintf("generation %d (version %s, sha256 %.12s)", g.number, g.version, g.sha)
}

// acquire takes a handle. It fails on a retired generation.
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

// retire gives out no more users.
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

// ended tells whether the process is gone.
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

// drain waits until a retired generation has no users, or uses more than it may, at
// most until drop.
func (g *generation) drain(timeout time.Duration, drop <-chan struct{}) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-g.drained:
	case <-timer.C:
	case <-g.overLimit:
	case <-drop:
	}
}

// stop asks the process to finish its calls and to end, ends it and its group
// when ctx does, and cleans up.
func (g *generation) stop(ctx context.Context) error {
	g.health.close()
	g.events.opened(ctx) // or the plugin would not wait for us to have its last events
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
	// First the connection: proto.Close would ask the plugin to end, and cannot
	// without one. The rest of it ends go-plugin's goroutines.
	_ = g.conn.Close()
	_ = g.proto.Close()
}

// close ends what go-plugin runs for a process that is gone.
func (g *generation) close() {
	g.health.close()
	g.events.finish(lastEvents)
	g.run.detach()
	g.client.Kill()
}
