package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/sdk/device"
)

func (r *run) wantsDevices() bool { return len(r.rec.Spec.Devices) > 0 }

// reserve picks the workload's devices and asks their plugins what it needs to use them. The
// devices are in the journal before a plugin is asked, so no other workload gets them after a
// restart of the host.
func (r *run) reserve(ctx context.Context) error {
	given := r.rec.Devices // only this goroutine writes it
	if len(given) == 0 {
		bounded, cancel := context.WithTimeout(ctx, r.m.limits.devices)
		defer cancel()
		var err error
		if given, err = r.m.Devices.Pick(bounded, r.ref, deviceRequests(r.rec.Spec)); err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return step.NoEffect(err)
		}
		if err := r.Save(func() { r.rec.Devices = given }); err != nil {
			return err
		}
	}
	var reservation device.Reservation
	err := r.m.limits.retry.Retry(ctx, r.m.limits.reserve, step.Retryable, func(ctx context.Context) (err error) {
		reservation, err = r.m.Devices.Reserve(ctx, given)
		return err
	})
	if err == nil {
		err = checkPlaces(r.rec.Spec.Volumes, reservation)
	}
	if err != nil {
		return fmt.Errorf("the devices of %s: %w", r.instance, err)
	}
	r.Update(func() { r.rec.Reservation = reservation })
	return nil
}

func deviceRequests(spec Spec) (out []devices.Request) {
	for _, d := range spec.Devices {
		out = append(out, devices.Request{Name: d.Name, Count: d.Count})
	}
	return out
}

// checkPlaces refuses a reservation that mounts something at the destination of a volume.
func checkPlaces(volumes []specs.VolumeRequest, reservation device.Reservation) error {
	var places []string
	for _, m := range reservation.Mounts {
		places = append(places, m.TaskPath)
	}
	for _, d := range reservation.Devices {
		places = append(places, d.TaskPath)
	}
	var errs []error
	for _, v := range volumes {
		if slices.Contains(places, v.Destination) {
			errs = append(errs, status.Errorf(codes.FailedPrecondition,
				"volume %q has the destination %s, where a device plugin mounts something too", v.Name, v.Destination))
		}
	}
	return errors.Join(errs...)
}

// freeDevices gives the devices back to the node. Their plugins keep nothing of a reservation.
func (r *run) freeDevices(context.Context) error {
	err := r.Save(func() { r.rec.Devices, r.rec.Reservation = nil, device.Reservation{} })
	if err == nil {
		r.m.Devices.Free(r.ref)
	}
	return err
}
