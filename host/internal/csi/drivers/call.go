package drivers

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/storage"
)

// ErrUnhealthy says that the driver cannot be called now. The error's text says why.
var ErrUnhealthy = errcode.Unavailable.New("the driver is not healthy")

// Caller makes calls to drivers: it waits until the driver is healthy, and turns a plugin's error
// into the driver's own words.
type Caller struct {
	Drivers interface {
		Get(id string) (Driver, error)
		Changed() <-chan struct{}
	}
	// Storage runs fn with a client of the storage plugin, within the deadline of one call, and
	// again if the plugin process ended meanwhile (catalog.Catalog.DoStorage).
	Storage func(ctx context.Context, fn func(ctx context.Context, c storage.Client) error) error
}

// Call makes one call to a driver that is healthy, or becomes healthy within wait. The error is
// ErrUnhealthy, or has the driver's own words and gRPC code.
func (c Caller) Call(ctx context.Context, id string, wait time.Duration, fn func(ctx context.Context, c storage.Client, d Driver) error) error {
	d, err := c.Await(ctx, id, wait)
	if err != nil {
		return err
	}
	return plain(c.Storage(ctx, func(ctx context.Context, s storage.Client) error { return fn(ctx, s, d) }))
}

// Await waits until a driver is healthy; ErrUnhealthy if it is not within wait. An unknown driver is
// an error at once.
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

// driverError is a gRPC status error whose text is the driver's own. status.FromError finds its code
// through any wrapping.
type driverError struct{ err error }

func (e driverError) Error() string { return status.Convert(e.err).Message() }

func (e driverError) Unwrap() error { return e.err }

// plain removes gRPC's prefix ("rpc error: code = ...") from the text of an error that the plugin
// returned.
func plain(err error) error {
	// A wrapped one has text of its own that must stay.
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return driverError{err}
	}
	return err
}
