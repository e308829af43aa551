package goplugin

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/internal/notify"
)

// Transport runs plugins of one kind, whatever that is, that speak gRPC. Acquire is how callers reach the one that
// serves.
type Transport struct {
	Handshake goplugin.HandshakeConfig
	Plugins   goplugin.PluginSet
	Dir       string // of the sockets
	Env       []string

	current atomic.Pointer[connection]
	changed notify.Broadcast
}

// connection is a plugin that is up.
type connection struct {
	*Client
	*managed.Users
	process *managed.Process
}

func (t *Transport) config() *goplugin.ClientConfig {
	return &goplugin.ClientConfig{
		HandshakeConfig:  t.Handshake,
		VersionedPlugins: map[int]goplugin.PluginSet{int(t.Handshake.ProtocolVersion): t.Plugins},
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC}, SkipHostEnv: true, Logger: hclog.NewNullLogger(),
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: t.Dir},
	}
}

// Start starts a plugin, which is up after the handshake.
func (t *Transport) Start(ctx context.Context, p *managed.Process, bin managed.Binary, fork func(process.Spec) error,
) (managed.Conn, error) {
	c, err := Start(ctx, p, t.config(), func(env []string) (process.Spec, error) {
		return process.Spec{Token: process.NewToken(), Path: bin.Path, Env: append(env, t.Env...)}, nil
	}, fork)
	if err != nil {
		return nil, err
	}
	p.Run.Address = c.Address()
	return &connection{c, managed.NewUsers(), p}, nil
}

// Reattach connects to a plugin of an earlier host.
func (t *Transport) Reattach(ctx context.Context, p *managed.Process) (managed.Conn, error) {
	c, err := Reattach(ctx, p, t.config())
	if err != nil {
		return nil, err
	}
	return &connection{c, managed.NewUsers(), p}, nil
}

// Move lets callers use another plugin.
func (t *Transport) Move(_ context.Context, from, to *managed.Process, _ *managed.Swap, _ *time.Duration) error {
	t.use(from, to.Conn.(*connection))
	return nil
}

// Lost takes a plugin away from callers.
func (t *Transport) Lost(_ context.Context, p *managed.Process, _ error) { t.use(p, nil) }

func (t *Transport) use(from *managed.Process, to *connection) {
	t.current.Store(to)
	t.changed.Notify()
	if from != nil {
		from.Conn.(*connection).Retire()
	}
}

// Acquire returns the connection to the plugin that serves, for calls until release. It waits for one until ctx ends.
func (t *Transport) Acquire(ctx context.Context) (conn grpc.ClientConnInterface, release func(), err error) {
	for {
		changed := t.changed.Wait()
		if c := t.current.Load(); c != nil && !c.process.Ended() {
			if release, ok := c.Acquire(); ok {
				return c.Conn, release, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

// Watch returns why a plugin does not answer any more.
func (c *connection) Watch(ctx context.Context) error {
	for ctx.Err() == nil {
		if c.proto.Ping() != nil && ctx.Err() == nil {
			return errors.New("it does not answer")
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}

// Drain waits for the last user, up to grace, or else a minute.
func (c *connection) Drain(ctx context.Context, grace *time.Duration) {
	limit := time.Minute
	if grace != nil {
		limit = *grace
	}
	select {
	case <-c.Drained():
	case <-time.After(limit):
	case <-ctx.Done():
	}
}

// Stop does nothing: a plugin that has no users is ended by a signal.
func (c *connection) Stop(context.Context) error { return nil }
