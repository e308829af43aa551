package catalog

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/supervisor"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/storage"
)

func TestWhichDevicePlugins(t *testing.T) {
	list := []supervisor.Status{
		{Name: "z", Kind: device.Kind}, {Name: "a", Kind: device.Kind}, {Name: "s", Kind: storage.Kind}, {Name: "new"}, {Name: "later"},
	}
	c := New(&plugins{list: list})
	got, err := c.AwaitDevicePlugins(t.Context(), DevicePlugins{})
	want := DevicePlugins{Names: []string{"a", "z"}, Unknown: []string{"later", "new"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.AwaitDevicePlugins(ctx, want); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing has changed, and it does not wait: %v", err)
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
