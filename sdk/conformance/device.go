package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/sdk/device"
	devicev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/device/v1"
)

// A device plugin's backend is the machine, so no backend has to be configured.
var deviceKind = &kind{
	service: devicev1.File_pannier_plugin_device_v1_device_proto.Services().ByName("DeviceService"),
	ask: func(ctx context.Context, conn grpc.ClientConnInterface, _ backend) (string, error) {
		groups, err := deviceGroups(ctx, conn)
		if err != nil {
			return "", err
		}
		text, err := json.Marshal(groups)
		return string(text), err
	},
	methods: []method{{"Reserve", func(ctx context.Context, conn grpc.ClientConnInterface, _ backend, name string) error {
		_, err := device.NewClient(conn).Reserve(ctx, []string{name})
		return err
	}}},
	missing: func(*Config) string { return "" },
	job:     deviceJob,
	refusals: []refusal{{
		"to reserve a device that does not exist", codes.NotFound,
		func(ctx context.Context, _ *run, conn grpc.ClientConnInterface) error {
			_, err := device.NewClient(conn).Reserve(ctx, []string{"no-such-device"})
			return err
		},
	}},
	stream: func(ctx context.Context, conn grpc.ClientConnInterface, _ backend, opened func()) error {
		return device.NewClient(conn).Fingerprint(ctx, func([]device.Group) error { opened(); return nil })
	},
}

func deviceGroups(ctx context.Context, conn grpc.ClientConnInterface) (groups []device.Group, err error) {
	err = device.NewClient(conn).Fingerprint(ctx, func(g []device.Group) error {
		groups = g
		return errEnough
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return groups, err
}

// maxReserved bounds how many devices of a plugin are reserved.
const maxReserved = 4

// deviceJob reserves healthy devices, one by one. Reservations need not be released.
func deviceJob(ctx context.Context, _ *run, conn grpc.ClientConnInterface, _ string) ([]step, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	groups, err := deviceGroups(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("fingerprint: %w", err)
	}
	if err := device.ValidateGroups(groups); err != nil {
		return nil, fmt.Errorf("fingerprint: %w", err)
	}
	var steps []step
	for _, g := range groups {
		for _, d := range g.Devices {
			if !d.Healthy || len(steps) == maxReserved {
				continue
			}
			steps = append(steps, step{
				name: fmt.Sprintf("Reserve %q", d.ID),
				do: func(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
					reservation, err := device.NewClient(conn).Reserve(ctx, []string{d.ID})
					if err != nil {
						return "", err
					}
					if err := checkReservation(reservation); err != nil {
						return "", err
					}
					text, err := json.Marshal(reservation)
					return string(text), err
				},
			})
		}
	}
	if len(steps) == 0 {
		return nil, skip("needs a healthy device on this machine")
	}
	return steps, nil
}

// checkReservation checks that a host could give the reservation to a workload.
func checkReservation(r device.Reservation) error {
	var paths []string
	for _, m := range r.Mounts {
		paths = append(paths, m.HostPath, m.TaskPath)
	}
	for _, d := range r.Devices {
		paths = append(paths, d.HostPath, d.TaskPath)
		if d.Permissions == "" || strings.Trim(d.Permissions, "rwm") != "" {
			return fmt.Errorf("the permissions of %q are %q, not some of rwm", d.HostPath, d.Permissions)
		}
	}
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%q is not an absolute path", path)
		}
	}
	return nil
}
