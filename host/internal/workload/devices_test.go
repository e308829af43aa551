package workload

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/plugintest"
	"github.com/pannier/pannier/test/lib/check"
)

// zeros is a device plugin with two devices, all of which are /dev/zero.
type zeros struct {
	hooks *hooks
	mu    sync.Mutex
	asked [][]string
}

func (z *zeros) Fingerprint(ctx context.Context, report func([]device.Group) error) error {
	err := report([]device.Group{{
		Vendor: "pannier", Type: "pseudo", Name: "zero",
		Devices: []device.Instance{{ID: "zero-0", Healthy: true}, {ID: "zero-1", Healthy: true}},
	}})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (z *zeros) Reserve(ctx context.Context, ids []string) (r device.Reservation, err error) {
	err = z.hooks.call(ctx, "reserve", "", func() error {
		z.mu.Lock()
		defer z.mu.Unlock()
		z.asked = append(z.asked, ids)
		for _, id := range ids {
			r.Devices = append(r.Devices, device.Node{HostPath: "/dev/zero", TaskPath: "/dev/pseudo/" + id, Permissions: "rw"})
		}
		r.Env = map[string]string{"ZEROS": strings.Join(ids, ",")}
		return nil
	})
	return r, err
}

// onlyPlugin is zeros as the host's only device plugin.
type onlyPlugin struct{ client device.Client }

func (p onlyPlugin) AwaitDevicePlugins(ctx context.Context, seen, _ []string) (names, pending []string, err error) {
	if len(seen) == 0 {
		return []string{"zeros"}, nil, nil
	}
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

func (p onlyPlugin) Device(context.Context, string) (device.Client, func(), error) {
	return p.client, func() {}, nil
}

func (p onlyPlugin) DoDevice(ctx context.Context, _ string, fn func(ctx context.Context, c device.Client) error) error {
	return fn(ctx, p.client)
}

// withDevices gives a host that is not open yet the devices of z, as the registry of a new process knows them.
func (h *host) withDevices(t *testing.T, z *zeros) *host {
	t.Helper()
	z.hooks = h.hooks
	r := devices.New(onlyPlugin{device.NewClient(plugintest.Serve(t, device.Plugin(z)).Conn)}, h.bus,
		hclog.NewNullLogger())
	h.Devices = r
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return h
}

func deviceSpec(id string, count int, volumes ...string) Spec {
	s := spec(id, volumes...)
	s.Devices = []specs.DeviceRequest{{Name: "pannier/pseudo", Count: count}}
	return s
}

func TestAWorkloadHasItsDevicesAlone(t *testing.T) {
	h := prepareHost(t, newDir(t)).withDevices(t, &zeros{})
	h.open(t)
	h.volume(t, full, "a")
	w := h.start(t, deviceSpec("one", 2))
	if len(w.Devices) != 2 || w.Devices[0].Group != "pannier/pseudo/zero" || w.Devices[0].Request != "pannier/pseudo" {
		t.Errorf("it was given %+v", w.Devices)
	}
	if len(w.Reservation.Devices) != 2 || w.Reservation.Env["ZEROS"] != "zero-0,zero-1" {
		t.Errorf("its reservation is %+v", w.Reservation)
	}
	_, err := h.Start(t.Context(), deviceSpec("two", 1, "a"), Options{})
	if !errors.Is(err, devices.ErrTooFew) || !errors.Is(err, ErrFailed) ||
		!strings.Contains(err.Error(), `held by workload "one"`) {
		t.Errorf("the second one: %v", err)
	}
	if claims := h.ledger.claims(); len(claims) > 0 {
		t.Errorf("what was refused has left %+v", claims)
	}
	h.stop(t, "one")
	if w := h.start(t, deviceSpec("two", 1, "a")); len(w.Devices) != 1 {
		t.Errorf("afterwards: %+v", w.Devices)
	}
	h.stop(t, "two")
	h.clean(t)
}

func TestCheckOfDevices(t *testing.T) {
	h := prepareHost(t, newDir(t)).withDevices(t, &zeros{})
	h.open(t)
	h.start(t, deviceSpec("one", 1))
	for _, tc := range []struct {
		spec    Spec
		problem string
	}{
		{deviceSpec("two", 1), ""},
		{deviceSpec("two", 1), ""}, // the first check took nothing
		{deviceSpec("two", 2), `2 asked for, 1 free: pannier/pseudo/zero "zero-0" is held by workload "one"`},
		{deviceSpec("one", 1), ""}, // it has its own
	} {
		c, err := h.Check(t.Context(), tc.spec)
		check.NoError(t, err)
		if got := errors.Join(c.Problems...); tc.problem == "" && got != nil ||
			tc.problem != "" && (!errors.Is(got, devices.ErrTooFew) || !strings.Contains(got.Error(), tc.problem)) {
			t.Errorf("%s with %d: %v; want %q", tc.spec.ID, tc.spec.Devices[0].Count, got, tc.problem)
		}
	}
	h.stop(t, "one")
	h.clean(t)
}

func TestDevicesAreHeldOverARestart(t *testing.T) {
	h := prepareHost(t, newDir(t)).withDevices(t, &zeros{})
	h.open(t)
	before := h.start(t, deviceSpec("one", 1))
	again := &zeros{}
	h = h.next(t).withDevices(t, again)
	h.open(t)
	w, err := h.Get(ref("one"))
	check.NoError(t, err)
	if !slices.Equal(w.Devices, before.Devices) || w.Reservation.Env["ZEROS"] != "zero-0" || len(again.asked) > 0 {
		t.Errorf("it has %+v with %+v, and the plugin was asked for %q", w.Devices, w.Reservation, again.asked)
	}
	if _, err := h.Start(t.Context(), deviceSpec("two", 2), Options{}); !errors.Is(err, devices.ErrTooFew) {
		t.Errorf("a held one is given away: %v", err)
	}
	h.start(t, deviceSpec("two", 1))
	h.stop(t, "one")
	h.stop(t, "two")
	h.clean(t)
}

// The host ends during the call to the plugin: the next process asks for the same devices.
func TestARestartInTheMiddleOfAReservation(t *testing.T) {
	h := prepareHost(t, newDir(t)).withDevices(t, &zeros{})
	h.open(t)
	h.start(t, deviceSpec("first", 1)) // has zero-0
	asking := make(chan struct{})
	h.on("reserve:before", 0, func(ctx context.Context) error {
		close(asking)
		<-ctx.Done()
		return ctx.Err()
	})
	var starting sync.WaitGroup
	starting.Go(func() { _, _ = h.Start(context.Background(), deviceSpec("w", 1), Options{}) })
	<-asking
	again := &zeros{}
	next := h.next(t).withDevices(t, again)
	starting.Wait()
	next.open(t)
	next.stop(t, "first") // zero-0 is free, and is not taken in its place
	w := next.running(t, "w")
	if len(w.Devices) != 1 || w.Devices[0].ID != "zero-1" || len(again.asked) != 1 || again.asked[0][0] != "zero-1" {
		t.Errorf("it has %+v, the plugin was asked for %q", w.Devices, again.asked)
	}
	next.stop(t, "w")
	next.clean(t)
}

func TestAReservationThatFailsFreesTheDevices(t *testing.T) {
	h := prepareHost(t, newDir(t)).withDevices(t, &zeros{})
	h.open(t)
	h.on("reserve:before", 1, func(context.Context) error { return status.Error(codes.Unavailable, "busy") })
	h.on("reserve:before", 2, func(context.Context) error { return status.Error(codes.NotFound, "no such device") })
	_, err := h.Start(t.Context(), deviceSpec("w", 2), Options{})
	if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "no such device") {
		t.Errorf("%v", err)
	}
	h.start(t, deviceSpec("v", 2))
	h.stop(t, "v")
	h.clean(t)
}

func TestDeviceAtTheDestinationOfAVolume(t *testing.T) {
	h := prepareHost(t, newDir(t)).withDevices(t, &zeros{})
	h.open(t)
	h.volume(t, full, "a")
	s := deviceSpec("w", 1, "a")
	s.Volumes[0].Destination = "/dev/pseudo/zero-0"
	if _, err := h.Start(t.Context(), s, Options{}); err == nil ||
		!strings.Contains(err.Error(), `volume "a" has the destination /dev/pseudo/zero-0`) {
		t.Errorf("%v", err)
	}
	h.clean(t)
}
