package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/devices"
	"github.com/pannier/pannier/sdk/device"
)

// reserve picks the workload's devices and asks their plugins what it needs to use them.
// Which they are is in the journal before a plugin is asked, so that whatever comes after,
// nobody else is given them.
func (r *run) reserve(ctx context.Context) error {
	given := r.rec.Devices // only this goroutine writes it
	if len(given) == 0 {
		var err error
		if given, err = r.pickDevices(ctx); err != nil {
			return untouchedError{err}
		}
		if err := r.update(r.journal, func(rec *record) { rec.Devices = given }); err != nil {
			return err
		}
	}
	var reservation device.Reservation
	err := r.retry(ctx, r.limits.reserve, recoverable, func(ctx context.Context) (err error) {
		reservation, err = r.Devices.Reserve(ctx, given)
		return err
	})
	if err == nil {
		err = r.placesOf(reservation)
	}
	if err != nil {
		return fmt.Errorf("the devices of %s: %w", r.instance, err)
	}
	return r.update(nil, func(rec *record) { rec.Reservation = reservation })
}

func (r *run) pickDevices(ctx context.Context) ([]devices.Given, error) {
	var want []devices.Request
	for _, d := range r.rec.Spec.Devices {
		want = append(want, devices.Request{Name: d.Name, Count: d.Count})
	}
	bounded, cancel := context.WithTimeout(ctx, r.limits.devices)
	defer cancel()
	given, err := r.Devices.Pick(bounded, r.ref, want)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return given, err
}

// placesOf refuses what would lie where a volume is to be.
func (r *run) placesOf(reservation device.Reservation) error {
	var places []string
	for _, m := range reservation.Mounts {
		places = append(places, m.TaskPath)
	}
	for _, d := range reservation.Devices {
		places = append(places, d.TaskPath)
	}
	var errs []error
	for _, v := range r.rec.Spec.Volumes {
		if v.Destination != "" && slices.Contains(places, v.Destination) {
			errs = append(errs, status.Errorf(codes.FailedPrecondition,
				"volume %q has the destination %s, where a device's plugin wants something to be", v.Name, v.Destination))
		}
	}
	return errors.Join(errs...)
}

// freeDevices lets other workloads have the devices. Their plugins keep nothing.
func (r *run) freeDevices(context.Context) error {
	err := r.update(r.journal, func(rec *record) { rec.Devices, rec.Reservation = nil, device.Reservation{} })
	if err == nil {
		r.Devices.Free(r.ref)
	}
	return err
}
