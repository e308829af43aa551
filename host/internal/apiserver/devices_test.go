package apiserver

import (
	"context"
	"reflect"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/test/lib/check"
)

// pseudoDevices is the only device plugin of a host, with one healthy and one unhealthy device.
type pseudoDevices struct{}

func (pseudoDevices) AwaitDevicePlugins(ctx context.Context, seen, _ []string) (names, pending []string, err error) {
	if len(seen) == 0 {
		return []string{"pseudo"}, nil, nil
	}
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

func (p pseudoDevices) Device(context.Context, string) (device.Client, func(), error) {
	return p, func() {}, nil
}

func (p pseudoDevices) DoDevice(ctx context.Context, _ string,
	fn func(ctx context.Context, c device.Client) error,
) error {
	return fn(ctx, p)
}

func (pseudoDevices) Fingerprint(ctx context.Context, report func([]device.Group) error) error {
	if err := report([]device.Group{{
		Vendor: "pannier", Type: "pseudo", Name: "zero", Attributes: map[string]string{"bytes": "0"},
		Devices: []device.Instance{{ID: "zero-0", Healthy: true, Locality: "here"}, {ID: "zero-1", Message: "worn"}},
	}}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (pseudoDevices) Reserve(context.Context, []string) (device.Reservation, error) {
	return device.Reservation{
		Mounts:  []device.Mount{{HostPath: "/usr", TaskPath: "/opt/usr", ReadOnly: true}},
		Devices: []device.Node{{HostPath: "/dev/zero", TaskPath: "/dev/z", Permissions: "r"}},
		Env:     map[string]string{"ZERO": "0"},
	}, nil
}

func (pseudoDevices) Stats(ctx context.Context, _ time.Duration, report func([]device.Stats) error) error {
	if err := report([]device.Stats{{
		ID: "zero-0", Time: time.Unix(7, 0), Summary: "idle",
		Values: map[string]float64{"read_bytes": 3},
	}}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (h *host) zero(t *testing.T) *hostv1.Device {
	t.Helper()
	resp := check.Must(h.client.Devices.ListDevices(h.ctx, &hostv1.ListDevicesRequest{}))(t)
	if len(resp.Groups) == 0 {
		return nil
	}
	g := resp.Groups[0]
	if len(g.Devices) != 2 || g.Plugin != "pseudo" || g.Vendor != "pannier" || g.Type != "pseudo" || g.Name != "zero" ||
		g.Attributes["bytes"] != "0" {
		t.Fatalf("shown %v", g)
	}
	if d := g.Devices[1]; d.Healthy || d.Message != "worn" {
		t.Errorf("shown %v", d)
	}
	return g.Devices[0]
}

func TestWorkloadsGetDevices(t *testing.T) {
	h := openHost(t)
	start := func(id string) (w *hostv1.Workload, err error) {
		stream, err := h.client.Workloads.StartWorkload(h.ctx, &hostv1.StartWorkloadRequest{
			Spec: &hostv1.WorkloadSpec{Id: id, Devices: []*hostv1.DeviceRequest{{Name: "pseudo", Count: 1}}},
		})
		check.NoError(t, err)
		defer stream.Close()
		for stream.Receive() {
			w = stream.Msg().GetWorkload()
		}
		return w, stream.Err()
	}
	w := check.Must(start("w"))(t)
	if len(w.Devices) != 1 || w.Devices[0].Group != "pannier/pseudo/zero" || w.Devices[0].Id != "zero-0" ||
		w.Devices[0].Plugin != "pseudo" || w.Devices[0].Request != "pseudo" {
		t.Errorf("it has %v", w.Devices)
	}
	if r := w.Reservation; r.Env["ZERO"] != "0" || r.Nodes[0].TaskPath != "/dev/z" || r.Nodes[0].HostPath != "/dev/zero" ||
		r.Nodes[0].Permissions != "r" ||
		r.Mounts[0].HostPath != "/usr" || r.Mounts[0].TaskPath != "/opt/usr" || !r.Mounts[0].ReadOnly {
		t.Errorf("the call returned %v", r)
	}
	if n := w.Spec.Devices; len(n) != 1 || n[0].Name != "pseudo" || n[0].Count != 1 {
		t.Errorf("its spec has %v", n)
	}
	if d := h.zero(t); d.Workload != "w" || d.Namespace != "default" || !d.Healthy || d.Locality != "here" {
		t.Errorf("shown %v", d)
	}
	_, err := start("v")
	wantError(t, err, connect.CodeFailedPrecondition, `held by workload "w"`, "worn")
	h.stop(t, "w")
	if d := h.zero(t); d.Workload != "" {
		t.Errorf("afterwards it is %v", d)
	}
	check.Eventually(t, "the node's record has its devices", func() bool {
		var n claim.Node
		err := h.ledger.Read(h.ctx, func(tx *state.ReadTx) (err error) { n, err = tx.Node("n1"); return err })
		want := []claim.NodeDevices{{
			Plugin: "pseudo", Vendor: "pannier", Type: "pseudo", Name: "zero", Total: 2, Healthy: 1,
			Attributes: map[string]string{"bytes": "0"},
		}}
		return err == nil && reflect.DeepEqual(n.Devices, want)
	})
	status := check.Must(h.client.Agent.Status(h.ctx, &hostv1.StatusRequest{}))(t)
	if g := status.Devices; len(g) != 1 || len(g[0].Devices) != 2 {
		t.Errorf("the status has %v", g)
	}
}

func TestStatisticsOfDevices(t *testing.T) {
	h := openHost(t)
	check.Eventually(t, "the devices are known", func() bool { return h.zero(t) != nil })
	read := func(interval int64, n int) error {
		stream := check.Must(h.client.Devices.DeviceStats(h.ctx, &hostv1.DeviceStatsRequest{IntervalMs: interval}))(t)
		defer stream.Close()
		for range n {
			if !stream.Receive() {
				break
			}
			d := stream.Msg().GetDevices()
			if len(d) != 1 || d[0].Plugin != "pseudo" || d[0].Id != "zero-0" || d[0].Summary != "idle" ||
				d[0].Values["read_bytes"] != 3 || d[0].Time.AsTime().Unix() != 7 {
				t.Errorf("got %v", d)
			}
		}
		if interval == 0 && stream.Receive() {
			t.Error("it goes on after the one that was asked for")
		}
		return stream.Err()
	}
	check.NoError(t, read(0, 1))
	check.NoError(t, read(100, 2))
	for _, wrong := range []int64{-1, 99, 86_400_001} {
		wantError(t, read(wrong, 1), connect.CodeInvalidArgument, "interval_ms")
	}
}
