package device_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/plugintest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var groups = []device.Group{{
	Vendor: "nvidia", Type: "gpu", Name: "T4", Attributes: map[string]string{"memory": "16 GiB"},
	Devices: []device.Instance{
		{ID: "a", Healthy: true, Locality: "0000:3b:00.0"},
		{ID: "b", Message: "too hot"},
	},
}}

// gpus has two devices, and reserves those that the workload asks for.
type gpus struct {
	reserved []string
}

func (g *gpus) Fingerprint(ctx context.Context, report func([]device.Group) error) error {
	for _, now := range [][]device.Group{groups, {}} {
		if err := report(now); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

func (g *gpus) Reserve(_ context.Context, ids []string) (device.Reservation, error) {
	if ids[0] == "gone" {
		return device.Reservation{}, status.Error(codes.NotFound, "no device gone")
	}
	g.reserved = ids
	return reservation(), nil
}

func reservation() device.Reservation {
	return device.Reservation{
		Mounts:  []device.Mount{{HostPath: "/usr/lib/gpu", TaskPath: "/lib/gpu", ReadOnly: true}},
		Devices: []device.Node{{HostPath: "/dev/gpu0", TaskPath: "/dev/gpu0", Permissions: "rw"}},
		Env:     map[string]string{"VISIBLE": "a"},
	}
}

// measured is gpus with statistics.
type measured struct{ gpus }

var used = []device.Stats{{
	ID: "a", Time: time.Unix(1700000000, 0).UTC(), Summary: "half",
	Values: map[string]float64{"memory_used_bytes": 8 << 30},
}}

func (m *measured) Stats(ctx context.Context, interval time.Duration, report func([]device.Stats) error) error {
	for ctx.Err() == nil {
		if err := report(used); err != nil {
			return err
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

var errEnough = errors.New("enough")

func serve(t *testing.T, impl device.Device) device.Client {
	t.Helper()
	return device.NewClient(plugintest.Serve(t, device.Plugin(impl)).Conn)
}

func TestAllOfAFingerprintArrives(t *testing.T) {
	var got [][]device.Group
	err := serve(t, &gpus{}).Fingerprint(t.Context(), func(now []device.Group) error {
		if got = append(got, now); len(got) == 2 {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) || !reflect.DeepEqual(got, [][]device.Group{groups, nil}) {
		t.Errorf("%v, %+v", err, got)
	}
}

func TestAllOfAReservationArrives(t *testing.T) {
	impl := &gpus{}
	c := serve(t, impl)
	got, err := c.Reserve(t.Context(), []string{"a", "b"})
	if err != nil || !reflect.DeepEqual(got, reservation()) || !reflect.DeepEqual(impl.reserved, []string{"a", "b"}) {
		t.Errorf("%+v, %v; asked for %q", got, err, impl.reserved)
	}
	if _, err := c.Reserve(t.Context(), []string{"gone"}); status.Code(err) != codes.NotFound {
		t.Errorf("one that is not there: %v", err)
	}
}

func TestStatisticsAreOptional(t *testing.T) {
	var got [][]device.Stats
	read := func(c device.Client) error {
		return c.Stats(t.Context(), time.Millisecond, func(now []device.Stats) error {
			if got = append(got, now); len(got) == 2 {
				return errEnough
			}
			return nil
		})
	}
	if err := read(serve(t, &measured{})); !errors.Is(err, errEnough) ||
		!reflect.DeepEqual(got, [][]device.Stats{used, used}) {
		t.Errorf("%v, %+v", err, got)
	}
	if err := read(serve(t, &gpus{})); status.Code(err) != codes.Unimplemented {
		t.Errorf("a plugin without: %v", err)
	}
	err := serve(t, &measured{}).Stats(t.Context(), 0, func([]device.Stats) error { return nil })
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("no interval: %v", err)
	}
}

func TestWhatAGroupMustBe(t *testing.T) {
	one := func(change func(g *device.Group)) []device.Group {
		g := device.Group{Vendor: "v", Type: "t", Name: "a/b", Devices: []device.Instance{{ID: "1"}}}
		change(&g)
		return []device.Group{g}
	}
	same := func(*device.Group) {}
	for want, groups := range map[string][]device.Group{
		"":                            one(same),
		"vendor is missing":           one(func(g *device.Group) { g.Vendor = "" }),
		"type must not have a slash":  one(func(g *device.Group) { g.Type = "a/b" }),
		"name has more than 256":      one(func(g *device.Group) { g.Name = strings.Repeat("x", 257) }),
		"id \"\\n\" must not have":    one(func(g *device.Group) { g.Devices[0].ID = "\n" }),
		"device \"1\" is there twice": one(func(g *device.Group) { g.Devices = append(g.Devices, g.Devices[0]) }),
		"is there twice":              append(one(same), one(func(g *device.Group) { g.Devices = nil })...),
		"attribute \"\" is missing":   one(func(g *device.Group) { g.Attributes = map[string]string{"": "x"} }),
		"257 devices, 256":            one(func(g *device.Group) { g.Devices = many(257) }),
		"33 groups, 32":               make([]device.Group, 33),
	} {
		if err := device.ValidateGroups(groups); (err == nil) != (want == "") || err != nil &&
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func many(n int) (out []device.Instance) {
	for i := range n {
		out = append(out, device.Instance{ID: string(rune('a' + i))})
	}
	return out
}

func TestWhatAReservationMustBe(t *testing.T) {
	for want, change := range map[string]func(r *device.Reservation){
		"":                       func(*device.Reservation) {},
		"mount: \"lib\"":         func(r *device.Reservation) { r.Mounts[0].HostPath = "lib" },
		"mount: \"/a/../b\"":     func(r *device.Reservation) { r.Mounts[0].TaskPath = "/a/../b" },
		"device: \"/\"":          func(r *device.Reservation) { r.Devices[0].TaskPath = "/" },
		"two for /dev/gpu0":      func(r *device.Reservation) { r.Mounts[0].TaskPath = "/dev/gpu0" },
		"permissions \"\"":       func(r *device.Reservation) { r.Devices[0].Permissions = "" },
		"permissions \"rx\"":     func(r *device.Reservation) { r.Devices[0].Permissions = "rx" },
		"variable \"A=B\"":       func(r *device.Reservation) { r.Env["A=B"] = "" },
		"variable \"A\" must":    func(r *device.Reservation) { r.Env["A"] = "x\nB=y" },
		"variable \"\": no such": func(r *device.Reservation) { r.Env[""] = "x" },
	} {
		r := reservation()
		change(&r)
		if err := r.Validate(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
