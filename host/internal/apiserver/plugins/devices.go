package plugins

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/host/internal/apiserver/call"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// ListDevices lists the devices of this node, by group.
func (h *Handler) ListDevices(context.Context, *hostv1.ListDevicesRequest) (*hostv1.ListDevicesResponse, error) {
	return &hostv1.ListDevicesResponse{Groups: h.ShownDevices()}, nil
}

// The bounds of DeviceStats' interval, in milliseconds.
const minStatsInterval, maxStatsInterval = 100, int64(24 * time.Hour / time.Millisecond)

// DeviceStats asks the plugins once or, with an interval, until the caller disconnects.
func (h *Handler) DeviceStats(ctx context.Context, req *hostv1.DeviceStatsRequest,
	stream *connect.ServerStream[hostv1.DeviceStatsResponse],
) error {
	interval := req.GetIntervalMs()
	if interval != 0 && (interval < minStatsInterval || interval > maxStatsInterval) {
		return call.Invalid("statistics of devices", "interval_ms", "must be 0 for one answer, or from 100 to 86400000")
	}
	for {
		if err := stream.Send(h.deviceStats(ctx)); err != nil || interval == 0 {
			return err
		}
		select {
		case <-time.After(time.Duration(interval) * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (h *Handler) deviceStats(ctx context.Context) *hostv1.DeviceStatsResponse {
	out := &hostv1.DeviceStatsResponse{}
	for _, sample := range h.Devices.Sample(ctx) {
		if sample.Err != nil {
			if out.Problems == nil {
				out.Problems = map[string]string{}
			}
			out.Problems[sample.Plugin] = sample.Err.Error()
		}
		for _, d := range sample.Devices {
			out.Devices = append(out.Devices, &hostv1.DeviceStats{
				Plugin: sample.Plugin, Id: d.ID, Time: call.Time(d.Time), Summary: d.Summary, Values: d.Values,
			})
		}
	}
	return out
}

// ShownDevices returns all devices of this node.
func (h *Handler) ShownDevices() (out []*hostv1.DeviceGroup) {
	for _, g := range h.Devices.List() {
		group := &hostv1.DeviceGroup{Plugin: g.Plugin, Vendor: g.Vendor, Type: g.Type, Name: g.Name, Attributes: g.Attributes}
		for _, d := range g.Devices {
			group.Devices = append(group.Devices, &hostv1.Device{
				Id: d.ID, Healthy: d.Healthy, Message: d.Message, Locality: d.Locality,
				Workload: d.Holder.ID, Namespace: d.Holder.Namespace,
			})
		}
		out = append(out, group)
	}
	return out
}
