// Package bridge implements the storage kind over CSI: it translates the host's calls to CSI, checks that the
// driver supports them, and translates the answers back. Package driver does deadlines, retries, queueing, logs
// and error texts.
//
// Invariants: nothing is kept between two calls except connections, drivers' capabilities and the calls that drivers
// died of, so that the process can be replaced at any moment; and nothing is decided about claims or steps, because
// the host decides which call to make.
package bridge

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/driver"
	"github.com/pannier/pannier/sdk/storage"
)

// Bridge is a storage plugin that reaches CSI drivers over their sockets. It is
// safe for concurrent use.
type Bridge struct {
	pool *driver.Pool
}

var _ storage.Client = (*Bridge)(nil)

// New makes a Bridge with the deadlines of driver.DefaultTiming.
func New(log hclog.Logger) *Bridge { return newBridge(log, driver.DefaultTiming) }

func newBridge(log hclog.Logger, timing driver.Timing) *Bridge {
	return &Bridge{pool: driver.NewPool(log, timing)}
}

// Close closes the connections to all drivers. It may be repeated.
func (b *Bridge) Close() error { return b.pool.Close() }

// Drivers implements storage.DriverBringer: a bridge brings none.
func (*Bridge) Drivers(context.Context) ([]storage.Driver, error) { return nil, nil }

// do runs op on the driver d.
func do[T any](ctx context.Context, b *Bridge, d storage.Driver, op driver.Op,
	attempt func(context.Context, *driver.Conn) (T, error),
) (T, error) {
	op.Driver = d.ID
	conn, release, err := b.pool.Acquire(d.Endpoint)
	if err != nil {
		var none T
		return none, status.Errorf(status.Code(err), "driver %q: %s", d.ID, status.Convert(err).Message())
	}
	defer release()
	return driver.Do(ctx, conn, op, func(ctx context.Context) (T, error) { return attempt(ctx, conn) })
}

// controllerDo is do for a call to the controller service.
func controllerDo[T any](ctx context.Context, b *Bridge, d storage.Driver, op driver.Op,
	attempt func(context.Context, *driver.Conn, *driver.Controller) (T, error),
) (T, error) {
	return do(ctx, b, d, op, func(ctx context.Context, c *driver.Conn) (T, error) {
		caps, err := c.ControllerCaps(ctx)
		if err == nil && caps == nil {
			err = status.Error(codes.Unimplemented, "the driver has no controller service")
		}
		if err != nil {
			var none T
			return none, err
		}
		return attempt(ctx, c, caps)
	})
}

// nodeDo is do for a call to the node service.
func nodeDo[T any](ctx context.Context, b *Bridge, d storage.Driver, op driver.Op,
	attempt func(context.Context, *driver.Conn, *driver.Node) (T, error),
) (T, error) {
	return do(ctx, b, d, op, func(ctx context.Context, c *driver.Conn) (T, error) {
		caps, err := c.NodeCaps(ctx)
		if err == nil && caps == nil {
			err = status.Error(codes.Unimplemented, "the driver has no node service")
		}
		if err != nil {
			var none T
			return none, err
		}
		return attempt(ctx, c, caps)
	})
}

// onVolume returns an operation on an existing volume. Only one runs at a time for each volume.
func onVolume(rpc driver.RPC, v storage.Volume) driver.Op {
	return driver.Op{
		RPC:        rpc,
		Object:     v.Name,
		ExternalID: v.ExternalID,
		Key:        "volume " + v.ExternalID,
		Redactor:   driver.NewRedactor(v.Secrets, v.Capability),
	}
}

// lacks is the error of a call that needs a capability which the driver does not have.
func lacks(capability string) error {
	return status.Errorf(codes.Unimplemented, "the driver does not implement %s", capability)
}

// absentIsDone turns NotFound into success, for calls that remove something.
func absentIsDone(err error) error {
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}
