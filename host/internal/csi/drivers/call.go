package drivers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
)

// ErrUnhealthy says that the driver cannot be called now. The error's text says why.
var ErrUnhealthy = errors.New("the driver is not healthy")

// Caller makes calls to drivers: one place for what has to be so before a call, and
// for what its error says.
type Caller struct {
	Drivers interface {
		Get(id string) (Driver, error)
		Changed() <-chan struct{}
	}
	// Storage runs fn with a client of the storage plugin, within the bound of one
	// call, and again when the plugin ended in the middle of it (catalog.Catalog.DoStorage).
	Storage func(ctx context.Context, fn func(ctx context.Context, c storage.Client) error) error
}

// Call makes one call to a driver that is healthy, or becomes so within wait. The
// error is ErrUnhealthy, or reads as the driver's own words and keeps its code.
func (c Caller) Call(ctx context.Context, id string, wait time.Duration, fn func(ctx context.Context, c storage.Client, d Driver) error) error {
	d, err := c.Await(ctx, id, wait)
	if err != nil {
		return err
	}
	return plain(c.Storage(ctx, func(ctx context.Context, s storage.Client) error { return fn(ctx, s, d) }))
}

// Await waits until a driver is healthy, ErrUnhealthy if it is not by then. One
// that is not known at all is an error at once.
func (c Caller) Await(ctx context.Context, id string, wait time.Duration) (Driver, error) {
	late := time.NewTimer(wait)
	defer late.Stop()
	for {
		changed := c.Drivers.Changed()
		d, err := c.Drivers.Get(id)
		if err != nil || d.Healthy {
			return d, err
		}
		unhealthy := fmt.Errorf("%w: %s (see: pannier driver status %s)", ErrUnhealthy, d.Message, id)
		if wait <= 0 {
			return d, unhealthy
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return d, context.Cause(ctx)
		case <-late.C:
			return d, fmt.Errorf("after %s: %w", wait, unhealthy)
		}
	}
}

// driverError is a gRPC status error that reads as the driver's own words. Its
// code is found by status.FromError through all that is wrapped around it.
type driverError struct{ err error }

func (e driverError) Error() string { return status.Convert(e.err).Message() }

func (e driverError) Unwrap() error { return e.err }

// plain takes gRPC's frame ("rpc error: code = ...") off the text of an error
// that came from the plugin as it is.
func plain(err error) error {
	// A wrapped one has text of its own that must stay.
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return driverError{err}
	}
	return err
}
