package peer

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/internal/kmutex"
	"github.com/pannier/pannier/sdk/storage"
)

// driverCalls forwards the leader's controller calls to this node's driver with that ID, one at a time per volume.
// Only this node knows the driver's socket.
//
// The embedded Storage is nil: the guard refuses the calls that are not implemented here.
type driverCalls struct {
	storage.Storage

	calls   drivers.Caller
	volumes kmutex.Locks[drivenVolume]
}

// drivenVolume is a volume as its driver knows it: by its ID there, or by the name of a volume to be created.
type drivenVolume struct{ driver, volume string }

func (d *driverCalls) do(ctx context.Context, of storage.Driver, volume string,
	fn func(ctx context.Context, c storage.Client, here storage.Driver) error,
) error {
	if volume != "" {
		unlock, err := d.volumes.Lock(ctx, drivenVolume{of.ID, volume})
		if err != nil {
			return err
		}
		defer unlock()
	}
	err := d.calls.CallController(ctx, of.ID, 0, func(ctx context.Context, c storage.Client, found drivers.Driver) error {
		return fn(ctx, c, found.Ref())
	})
	if errors.Is(err, drivers.ErrNotFound) {
		// NotFound would be the driver's answer about the volume. Unavailable makes the leader try another node.
		return status.Error(codes.Unavailable, err.Error())
	}
	return err
}

func (d *driverCalls) ValidateVolume(ctx context.Context, of storage.Driver,
	req storage.ValidateRequest,
) (warnings []string, err error) {
	err = d.do(ctx, of, req.Volume.ExternalID, func(ctx context.Context, c storage.Client, here storage.Driver) error {
		warnings, err = c.ValidateVolume(ctx, here, req)
		return err
	})
	return warnings, err
}

func (d *driverCalls) Attach(ctx context.Context, of storage.Driver,
	req storage.AttachRequest,
) (publishContext map[string]string, err error) {
	err = d.do(ctx, of, req.Volume.ExternalID, func(ctx context.Context, c storage.Client, here storage.Driver) error {
		publishContext, err = c.Attach(ctx, here, req)
		return err
	})
	return publishContext, err
}

func (d *driverCalls) Detach(ctx context.Context, of storage.Driver, v storage.Volume, nodeID string) error {
	return d.do(ctx, of, v.ExternalID, func(ctx context.Context, c storage.Client, here storage.Driver) error {
		return c.Detach(ctx, here, v, nodeID)
	})
}

func (d *driverCalls) Create(ctx context.Context, of storage.Driver,
	req storage.CreateRequest,
) (made storage.CreateResponse, err error) {
	err = d.do(ctx, of, "name "+req.Name, func(ctx context.Context, c storage.Client, here storage.Driver) error {
		made, err = c.Create(ctx, here, req)
		return err
	})
	return made, err
}

func (d *driverCalls) Delete(ctx context.Context, of storage.Driver, v storage.Volume) error {
	return d.do(ctx, of, v.ExternalID, func(ctx context.Context, c storage.Client, here storage.Driver) error {
		return c.Delete(ctx, here, v)
	})
}

func (d *driverCalls) List(ctx context.Context, of storage.Driver, page storage.Page) (list storage.ListResponse,
	err error,
) {
	err = d.do(ctx, of, "", func(ctx context.Context, c storage.Client, here storage.Driver) error {
		list, err = c.List(ctx, here, page)
		return err
	})
	return list, err
}

func (d *driverCalls) Get(ctx context.Context, of storage.Driver, v storage.Volume) (got storage.ListedVolume,
	err error,
) {
	err = d.do(ctx, of, v.ExternalID, func(ctx context.Context, c storage.Client, here storage.Driver) error {
		got, err = c.Get(ctx, here, v)
		return err
	})
	return got, err
}

func (d *driverCalls) Modify(ctx context.Context, of storage.Driver, req storage.ModifyRequest) error {
	return d.do(ctx, of, req.Volume.ExternalID, func(ctx context.Context, c storage.Client, here storage.Driver) error {
		return c.Modify(ctx, here, req)
	})
}

func (d *driverCalls) Capacity(ctx context.Context, of storage.Driver,
	req storage.CapacityRequest,
) (room storage.Capacity, err error) {
	err = d.do(ctx, of, "", func(ctx context.Context, c storage.Client, here storage.Driver) error {
		room, err = c.Capacity(ctx, here, req)
		return err
	})
	return room, err
}

func (d *driverCalls) Expand(ctx context.Context, of storage.Driver,
	req storage.ExpandRequest,
) (grown storage.ExpandResponse, err error) {
	err = d.do(ctx, of, req.Volume.ExternalID, func(ctx context.Context, c storage.Client, here storage.Driver) error {
		grown, err = c.Expand(ctx, here, req)
		return err
	})
	return grown, err
}

// ExpandNode is served by the node service, which knows where volumes are mounted (Node.ExpandVolume).
func (d *driverCalls) ExpandNode(context.Context, storage.Driver, storage.ExpandNodeRequest) (int64, error) {
	return 0, denied("what is mounted on a node is its own")
}

func (d *driverCalls) CreateSnapshot(ctx context.Context, of storage.Driver,
	req storage.CreateSnapshotRequest,
) (taken storage.Snapshot, err error) {
	err = d.do(ctx, of, req.Volume.ExternalID, func(ctx context.Context, c storage.Client, here storage.Driver) error {
		taken, err = c.CreateSnapshot(ctx, here, req)
		return err
	})
	return taken, err
}

func (d *driverCalls) DeleteSnapshot(ctx context.Context, of storage.Driver, snapshotID string,
	secrets map[string]string,
) error {
	return d.do(ctx, of, "snapshot "+snapshotID, func(ctx context.Context, c storage.Client, here storage.Driver) error {
		return c.DeleteSnapshot(ctx, here, snapshotID, secrets)
	})
}

func (d *driverCalls) ListSnapshots(ctx context.Context, of storage.Driver,
	req storage.ListSnapshotsRequest,
) (list storage.ListSnapshotsResponse, err error) {
	err = d.do(ctx, of, "", func(ctx context.Context, c storage.Client, here storage.Driver) error {
		list, err = c.ListSnapshots(ctx, here, req)
		return err
	})
	return list, err
}

func (d *driverCalls) CreateGroupSnapshot(ctx context.Context, of storage.Driver,
	req storage.CreateGroupSnapshotRequest,
) (taken storage.GroupSnapshot, err error) {
	err = d.do(ctx, of, "group name "+req.Name, func(ctx context.Context, c storage.Client, here storage.Driver) error {
		taken, err = c.CreateGroupSnapshot(ctx, here, req)
		return err
	})
	return taken, err
}

func (d *driverCalls) DeleteGroupSnapshot(ctx context.Context, of storage.Driver,
	req storage.GroupSnapshotRequest,
) error {
	return d.do(ctx, of, "group "+req.ID, func(ctx context.Context, c storage.Client, here storage.Driver) error {
		return c.DeleteGroupSnapshot(ctx, here, req)
	})
}

func (d *driverCalls) GetGroupSnapshot(ctx context.Context, of storage.Driver,
	req storage.GroupSnapshotRequest,
) (got storage.GroupSnapshot, err error) {
	err = d.do(ctx, of, "", func(ctx context.Context, c storage.Client, here storage.Driver) error {
		got, err = c.GetGroupSnapshot(ctx, here, req)
		return err
	})
	return got, err
}
