package driver

import (
	"context"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/drivers/csi-local/internal/loop"
)

// bindNode attaches the volume's image, to a device that stays until
// detachUnused, and makes the device appear at path, a file that it makes. If
// it is there already, nothing is done; otherwise check is asked first.
func (d *Driver) bindNode(ctx context.Context, u usage, id string, readOnly bool, path string, check func(usage) error) error {
	switch at := u.at(path); {
	case at.other != nil:
		return foreign("the path of the device", id, at.other)
	case at.fs != nil:
		return status.Errorf(codes.AlreadyExists, "volume %q is mounted at %s as a file system: take it away first", id, path)
	case at.node != nil && at.node.device.ReadOnly != readOnly:
		return status.Errorf(codes.AlreadyExists,
			"volume %q is at %s already, but read-only is %t there: take it away first", id, path, !readOnly)
	case at.node != nil:
		return nil
	}
	if err := check(u); err != nil {
		return err
	}
	if err := d.bindNewNode(ctx, id, readOnly, path); err != nil {
		return errors.Join(err, d.detachUnused(id))
	}
	return nil
}

func (d *Driver) bindNewNode(ctx context.Context, id string, readOnly bool, path string) error {
	if err := makeFile(path); err != nil {
		return err
	}
	dev, hold, err := loop.Acquire(ctx, d.store.Image(id), loop.Options{ReadOnly: readOnly})
	if err != nil {
		return err
	}
	defer hold.Close()
	if err := dev.Resize(); err != nil {
		return err
	}
	return filesystem.Bind(dev.Path, path, filesystem.Options{})
}

// makeFile makes an empty file to bind to, or takes one that is there.
func makeFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o600)
	switch {
	case errors.Is(err, os.ErrExist):
		if err := emptyFile(path); err != nil {
			return status.Errorf(codes.InvalidArgument, "%v: choose another target", err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("make the target: %w", err)
	}
	return f.Close()
}
