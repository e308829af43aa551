package main

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/device"
)

// devices is a device plugin.
type devices struct{ *plugin }

func (d *devices) Fingerprint(ctx context.Context, report func([]device.Group) error) error {
	group := device.Group{Vendor: "linux", Type: "pseudo", Name: "memory",
		Devices: []device.Instance{{ID: "zero", Healthy: true}, {ID: "full", Message: "full"}}}
	if d.mode == "broken" {
		group.Vendor = ""
	}
	if err := report([]device.Group{group}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (d *devices) Reserve(_ context.Context, ids []string) (device.Reservation, error) {
	for _, id := range ids {
		if id != "zero" && d.mode != "lenient" {
			return device.Reservation{}, status.Error(codes.NotFound, "no device "+id)
		}
	}
	node := device.Node{HostPath: "/dev/zero", TaskPath: "/dev/zero", Permissions: "r"}
	switch d.mode {
	case "relative":
		node.TaskPath = "zero"
	case "all-rights":
		node.Permissions = "all"
	}
	return device.Reservation{Devices: []device.Node{node}, Env: map[string]string{"ZERO": "1"}}, nil
}
