package cli

import (
	"context"
	"errors"
	"path/filepath"

	"connectrpc.com/connect"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func deviceGroups() []*hostv1.DeviceGroup {
	return []*hostv1.DeviceGroup{{
		Plugin: "gpus", Vendor: "acme", Type: "gpu", Name: "T4", Attributes: map[string]string{"memory": "16GiB"},
		Devices: []*hostv1.Device{
			{Id: "gpu-0", Healthy: true, Workload: "w", Namespace: "default", Locality: "0000:3b:00.0"},
			{Id: "gpu-1", Message: "too\x1b[2Jhot"},
		},
	}}
}

func (f *fake) ListDevices(*hostv1.ListDevicesRequest) (*hostv1.ListDevicesResponse, error) {
	return &hostv1.ListDevicesResponse{Groups: deviceGroups()}, nil
}

// DeviceStats sends two answers if the caller follows, and then fails.
func (f *fake) DeviceStats(_ context.Context, r *hostv1.DeviceStatsRequest,
	s *connect.ServerStream[hostv1.DeviceStatsResponse],
) error {
	m := &hostv1.DeviceStatsResponse{
		Devices: []*hostv1.DeviceStats{{
			Plugin: "gpus", Id: "gpu-0", Summary: "half",
			Values: map[string]float64{"b_bytes": 8589934592, "a_percent": 12.5},
		}},
		Problems: map[string]string{"fpgas": "it is away"},
	}
	if err := s.Send(m); err != nil || r.GetIntervalMs() == 0 {
		return err
	}
	if err := s.Send(m); err != nil {
		return err
	}
	return connect.NewError(connect.CodeUnavailable, errors.New("the agent is stopping"))
}

// reserve adds a device with a file and a directory to a workload.
func (f *fake) reserve(w *hostv1.Workload) {
	w.Devices = []*hostv1.GivenDevice{{Request: "gpu", Plugin: "gpus", Group: "acme/gpu/T4", Id: "gpu-0"}}
	w.Reservation = &hostv1.DeviceReservation{
		Mounts: []*hostv1.DeviceMount{{HostPath: "/usr/lib", TaskPath: filepath.Join(f.dir, "lib"), ReadOnly: true}},
		Nodes:  []*hostv1.DeviceNode{{HostPath: "/dev/zero", TaskPath: filepath.Join(f.dir, "dev/gpu0"), Permissions: "rw"}},
		Env:    map[string]string{"GPUS": "0"},
	}
}
