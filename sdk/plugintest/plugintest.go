// Package plugintest tests a plugin in the test's own process: the author's implementation behind the real adapter
// and the real protocol, without a process, a host or files.
//
//	func TestMine(t *testing.T) {
//		client := plugintest.Storage(t, &impl{})
//		err := client.Stage(t.Context(), driver, req)
//		...
//	}
//
// The behaviour of the process (start, stop, survival of SIGKILL, handling of secrets) is tested with the built
// binary, by sdk/conformance.
package plugintest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/internal/inprocess"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/storage"
)

// Storage serves impl until the test ends and returns a host's client of it.
func Storage(t testing.TB, impl storage.Storage) storage.Client {
	t.Helper()
	return storage.NewClient(Serve(t, storage.Plugin(impl)).Conn)
}

// Identity serves impl until the test ends and returns a host's client of it.
func Identity(t testing.TB, impl identity.Identity) identity.Identity {
	t.Helper()
	return identity.NewClient(Serve(t, identity.Plugin(impl)).Conn)
}

// Registration serves impl until the test ends and returns a host's client of it.
func Registration(t testing.TB, impl registration.Registration) registration.Registration {
	t.Helper()
	return registration.NewClient(Serve(t, registration.Plugin(impl)).Conn)
}

// Bootstrap serves impl until the test ends and returns a host's client of it.
func Bootstrap(t testing.TB, impl bootstrap.Bootstrap) bootstrap.Bootstrap {
	t.Helper()
	return bootstrap.NewClient(Serve(t, bootstrap.Plugin(impl)).Conn)
}

// Device serves impl until the test ends and returns a host's client of it.
func Device(t testing.TB, impl device.Device) device.Client {
	t.Helper()
	return device.NewClient(Serve(t, device.Plugin(impl)).Conn)
}

// Plugin is a plugin that is served in this process.
type Plugin struct {
	// Conn is the host's connection to it, for the kind's NewClient.
	Conn *grpc.ClientConn
	api  pluginv1.PluginServiceClient
}

// Serve serves a plugin of any kind until the test ends. Then streams end, calls in flight finish, and an
// implementation that is an io.Closer is closed.
func Serve(t testing.TB, p sdk.Plugin) *Plugin {
	t.Helper()
	conn, stop, err := inprocess.Serve(sdk.Info{Name: t.Name(), Version: "0.0.0"}, p)
	if err != nil {
		t.Fatalf("connect to the plugin: %v", err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("stop the plugin: %v", err)
		}
	})
	return &Plugin{Conn: conn, api: pluginv1.NewPluginServiceClient(conn)}
}

// Validate makes the plugin check a configuration. config is the body of the plugin's config block as JSON. The
// error is the gRPC status error that a host gets.
func (p *Plugin) Validate(ctx context.Context, config string) error {
	_, err := p.api.Validate(ctx, &pluginv1.ValidateRequest{Config: []byte(config)})
	return err
}

// Configure validates a configuration and gives it to the plugin, as a host does.
func (p *Plugin) Configure(ctx context.Context, config string) error {
	if err := p.Validate(ctx, config); err != nil {
		return err
	}
	_, err := p.api.Configure(ctx, &pluginv1.ConfigureRequest{Config: []byte(config)})
	return err
}

// Health attends the plugin until its first health report. The error explains why the plugin is unhealthy, or why it
// could not be asked.
func (p *Plugin) Health(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.api.Attend(ctx, &pluginv1.AttendRequest{})
	if err != nil {
		return fmt.Errorf("attend the plugin: %w", err)
	}
	res, err := stream.Recv()
	switch {
	case err != nil:
		return fmt.Errorf("attend the plugin: %w", err)
	case !res.GetHealthy():
		return errors.New(res.GetMessage())
	default:
		return nil
	}
}
