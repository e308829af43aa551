package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
	ids, err := healthyDevices(ctx, conn)
	if err != nil {
		return nil, err
	}
	var steps []step
	for _, id := range ids {
		steps = append(steps, step{
			name: fmt.Sprintf("Reserve %q", id),
			do: func(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
				reservation, err := device.NewClient(conn).Reserve(ctx, []string{id})
				if err != nil {
					return "", err
				}
				if err := reservation.Validate(); err != nil {
					return "", err
				}
				text, err := json.Marshal(reservation)
				return string(text), err
			},
		})
	}
	return steps, nil
}

// healthyDevices returns the ids of at most maxReserved devices.
func healthyDevices(ctx context.Context, conn grpc.ClientConnInterface) ([]string, error) {
	groups, err := deviceGroups(ctx, conn)
	if err == nil {
		err = device.ValidateGroups(groups)
	}
	if err != nil {
		return nil, fmt.Errorf("fingerprint: %w", err)
	}
	var ids []string
	for _, g := range groups {
		for _, d := range g.Devices {
			if d.Healthy && len(ids) < maxReserved {
				ids = append(ids, d.ID)
			}
		}
	}
	if len(ids) == 0 {
		return nil, skip("needs a healthy device on this machine")
	}
	return ids, nil
}

var deviceChecks = []*Check{{
	ID:    "device.apart",
	kind:  device.Kind,
	Says:  "Each device is reserved for one workload: two ids give two different devices, and an id that is given twice is one device.",
	Fix:   "Give every device an id of its own, that of the hardware. Refuse a repeated id with InvalidArgument, or use it once.",
	after: append([]string{"work.repeat"}, worked...),
	run:   up(checkApart),
}}

func checkApart(ctx context.Context, r *run, c *checking, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	ids, err := healthyDevices(ctx, p.conn)
	if err != nil {
		return err
	}
	client := device.NewClient(p.conn)
	alone := map[string]string{} // ids by their reservation
	for _, id := range ids {
		reservation, err := client.Reserve(ctx, []string{id})
		if err != nil {
			return fmt.Errorf("reserve %q: %w", id, err)
		}
		text, err := json.Marshal(reservation)
		if err != nil {
			return err
		}
		if other, found := alone[string(text)]; found {
			return fmt.Errorf("the devices %q and %q are the same: both reservations are %.200s", other, id, text)
		}
		alone[string(text)] = id
	}
	reservation, err := client.Reserve(ctx, []string{ids[0], ids[0]})
	if err == nil {
		err = reservation.Validate()
	} else if status.Code(err) == codes.InvalidArgument {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("reserve %q twice in one call: %w", ids[0], err)
	}
	if len(ids) == 1 {
		return nil
	}
	reservation, err = client.Reserve(ctx, ids)
	if err == nil {
		err = reservation.Validate()
	}
	if err != nil {
		return fmt.Errorf("reserve %q in one call: %w", ids, err)
	}
	return nil
}
