package main

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/device"
)

// devices is a device plugin.
type devices struct{ *plugin }

func (d *devices) Fingerprint(ctx context.Context, report func([]device.Group) error) error {
	group := device.Group{
		Vendor: "linux", Type: "pseudo", Name: "memory",
		Devices: []device.Instance{
			{ID: "zero", Healthy: true}, {ID: "null", Healthy: true}, {ID: "full", Message: "full"},
		},
	}
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
	var res device.Reservation
	for n, id := range ids {
		if id != "zero" && id != "null" && d.mode != "lenient" {
			return res, status.Error(codes.NotFound, "no device "+id)
		}
		if slices.Contains(ids[:n], id) && d.mode != "twice" {
			return res, status.Error(codes.InvalidArgument, "one device twice")
		}
		if d.mode == "one-device" {
			id = "zero"
		}
		node := device.Node{HostPath: "/dev/" + id, TaskPath: "/dev/" + id, Permissions: "r"}
		switch d.mode {
		case "relative":
			node.TaskPath = id
		case "all-rights":
			node.Permissions = "all"
		}
		res.Devices = append(res.Devices, node)
	}
	return res, nil
}
