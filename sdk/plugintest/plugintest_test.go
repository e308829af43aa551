package plugintest_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/plugintest"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/sdk/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// impl is a plugin of every kind. Methods that no test needs are missing, and panic.
type impl struct {
	storage.Storage
	identity.Identity
	registration.Registration
	config string
	unwell error
	closed bool
}

func (i *impl) Stage(context.Context, storage.Driver, storage.StageRequest) error { panic("a bug") }

func (i *impl) Unstage(_ context.Context, _ storage.Driver, v storage.Volume, path string) error {
	if path == "" {
		return status.Error(codes.InvalidArgument, "volume "+v.Name+" has no staging path")
	}
	return nil
}

// Fingerprint stays open until the host or the process ends.
func (i *impl) Fingerprint(ctx context.Context, _ storage.Driver, _ storage.FingerprintOptions,
	report func(storage.Fingerprint) error,
) error {
	if err := report(storage.Fingerprint{Provider: "mine"}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (i *impl) List(context.Context, service.Consul, string) ([]identity.Token, error) {
	return []identity.Token{{Accessor: i.config}}, nil
}

func (i *impl) Register(_ context.Context, _ service.Consul, in registration.Instance) (string, error) {
	return in.ID + "-proxy", nil
}

func (i *impl) Generate(_ context.Context, c service.Consul, req bootstrap.Request) (bootstrap.Result, error) {
	return bootstrap.Result{Bootstrap: []byte(c.Name + req.ProxyID)}, nil
}

func (i *impl) Validate(_ context.Context, config []byte) error {
	if strings.Contains(string(config), "wrong") {
		return errors.New(`unknown key "wrong"`)
	}
	return nil
}

func (i *impl) Configure(_ context.Context, config []byte) error {
	i.config = string(config)
	return nil
}
func (i *impl) Health(context.Context) error { return i.unwell }
func (i *impl) Close() error                 { i.closed = true; return nil }

// gpu is a device plugin.
type gpu struct{ device.Device }

func (gpu) Reserve(_ context.Context, ids []string) (device.Reservation, error) {
	return device.Reservation{Env: map[string]string{"GPU": ids[0]}}, nil
}

func TestKinds(t *testing.T) {
	i := &impl{}
	t.Run("served", func(t *testing.T) {
		ctx := t.Context()
		store := plugintest.Storage(t, i)
		if err := store.Unstage(ctx, storage.Driver{}, storage.Volume{}, "/s"); err != nil {
			t.Error(err)
		}
		if err := store.Unstage(ctx, storage.Driver{}, storage.Volume{Name: "v"},
			""); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "volume v") {
			t.Errorf("got %v", err)
		}
		if err := store.Stage(ctx, storage.Driver{}, storage.StageRequest{}); status.Code(err) != codes.Internal {
			t.Errorf("a panic: got %v, want Internal as from a process", err)
		}
		enough := errors.New("enough")
		if err := store.Fingerprint(ctx, storage.Driver{}, storage.FingerprintOptions{}, func(f storage.Fingerprint) error {
			if f.Provider != "mine" {
				t.Errorf("got %+v", f)
			}
			return enough
		}); !errors.Is(err, enough) {
			t.Errorf("got %v", err)
		}
		if tokens, err := plugintest.Identity(t, i).List(ctx, service.Consul{}, "c"); err != nil || len(tokens) != 1 {
			t.Errorf("got %v, %v", tokens, err)
		}
		if id, err := plugintest.Registration(t, i).Register(ctx, service.Consul{},
			registration.Instance{ID: "a"}); err != nil || id != "a-proxy" {
			t.Errorf("got %q, %v", id, err)
		}
		if out, err := plugintest.Bootstrap(t, i).Generate(ctx, service.Consul{Name: "c"},
			bootstrap.Request{ProxyID: "p"}); err != nil || string(out.Bootstrap) != "cp" {
			t.Errorf("got %q, %v", out, err)
		}
		if r, err := plugintest.Device(t, gpu{}).Reserve(ctx, []string{"a"}); err != nil || r.Env["GPU"] != "a" {
			t.Errorf("got %+v, %v", r, err)
		}
		if i.closed {
			t.Error("closed while it is served")
		}
	})
	if !i.closed {
		t.Error("not closed")
	}
}

func TestLifeCycle(t *testing.T) {
	i := &impl{}
	p := plugintest.Serve(t, identity.Plugin(i))
	ctx := t.Context()
	if err := p.Configure(ctx, `{"a":1}`); err != nil || i.config != `{"a":1}` {
		t.Errorf("got %q, %v", i.config, err)
	}
	for name, call := range map[string]func(context.Context, string) error{
		"validate":  p.Validate,
		"configure": p.Configure,
	} {
		if err := call(ctx, `{"wrong":1}`); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(err.Error(), `unknown key "wrong"`) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if i.config != `{"a":1}` {
		t.Errorf("configured with what is not valid: %s", i.config)
	}
	if err := p.Health(ctx); err != nil {
		t.Error(err)
	}
	i.unwell = errors.New("no disk")
	if err := p.Health(ctx); err == nil || err.Error() != "no disk" {
		t.Errorf("got %v", err)
	}
}

// A stream that a test leaves open does not delay the end of the test.
func TestOpenStream(t *testing.T) {
	done := make(chan struct{})
	t.Run("open", func(t *testing.T) {
		client := plugintest.Storage(t, &impl{})
		first := make(chan struct{})
		go func() {
			defer close(done)
			_ = client.Fingerprint(context.Background(), storage.Driver{}, storage.FingerprintOptions{},
				func(storage.Fingerprint) error {
					close(first)
					return nil
				})
		}()
		<-first
	})
	<-done
}
