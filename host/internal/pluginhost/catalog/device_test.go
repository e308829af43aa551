package catalog

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/storage"
)

func TestWhichDevicePlugins(t *testing.T) {
	list := []supervisor.Status{
		{Name: "z", Kind: device.Kind}, {Name: "a", Kind: device.Kind}, {Name: "s", Kind: storage.Kind}, {Name: "new"}, {Name: "later"},
	}
	c := New(&plugins{list: list})
	names, pending := []string{"a", "z"}, []string{"later", "new"}
	got, unknown, err := c.AwaitDevicePlugins(t.Context(), nil, nil)
	if err != nil || !slices.Equal(got, names) || !slices.Equal(unknown, pending) {
		t.Errorf("got %q and %q, %v; want %q and %q", got, unknown, err, names, pending)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, _, err := c.AwaitDevicePlugins(ctx, names, pending); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing has changed, and it does not wait: %v", err)
	}
	if _, _, err := c.AwaitDevicePlugins(ctx, names, nil); err != nil {
		t.Errorf("one has come up: %v", err)
	}
}

func TestADevicePluginIsTakenByItsName(t *testing.T) {
	p := serve(t, &impl{})
	p.kind = device.Kind
	c := New(p)
	if err := c.DoDevice(t.Context(), "gpus", func(context.Context, device.Client) error { return nil }); err != nil || p.leases != 0 {
		t.Errorf("%v, %d leases", err, p.leases)
	}
	p.kind = storage.Kind
	if _, _, err := c.Device(t.Context(), "gpus"); !errors.Is(err, ErrWrongKind) || p.leases != 0 {
		t.Errorf("a plugin of another kind: %v, %d leases", err, p.leases)
	}
}
