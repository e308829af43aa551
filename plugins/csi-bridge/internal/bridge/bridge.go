// Package bridge implements the storage kind over CSI: it says in CSI's words
// what the host asks in the SDK's, checks that the driver can do it, and brings
// the answer back. Deadlines, retries, queueing, logs and error texts are
// package driver's.
//
// What must stay true: it keeps nothing between two calls but connections and
// what drivers said of themselves, so that its process can be replaced at any
// moment; and it decides nothing about claims or steps: the host says which
// call is due.
//
// It may import sdk/storage, internal/driver, the CSI spec and gRPC's status.
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

// Close closes the connections to all drivers. It may be called again.
func (b *Bridge) Close() error { return b.pool.Close() }

// do runs op on the driver d.
func do[T any](ctx context.Context, b *Bridge, d storage.Driver, op driver.Op, attempt func(context.Context, *driver.Conn) (T, error)) (T, error) {
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
func controllerDo[T any](ctx context.Context, b *Bridge, d storage.Driver, op driver.Op, attempt func(context.Context, *driver.Conn, *driver.Controller) (T, error)) (T, error) {
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
func nodeDo[T any](ctx context.Context, b *Bridge, d storage.Driver, op driver.Op, attempt func(context.Context, *driver.Conn, *driver.Node) (T, error)) (T, error) {
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

// onVolume is an operation on an existing volume: one at a time for each.
func onVolume(rpc driver.RPC, v storage.Volume) driver.Op {
	return driver.Op{
		RPC:        rpc,
		Object:     v.Name,
		ExternalID: v.ExternalID,
		Key:        "volume " + v.ExternalID,
		Redactor:   driver.NewRedactor(v.Secrets, v.Capability),
	}
}

// lacks is the answer to a call that needs a capability which the driver does
// not have.
func lacks(capability string) error {
	return status.Errorf(codes.Unimplemented, "the driver does not implement %s", capability)
}

// absentIsDone turns NotFound into success, for the calls whose aim is that
// something is gone.
func absentIsDone(err error) error {
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}
