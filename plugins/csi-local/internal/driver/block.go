package driver

import (
	"context"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/csi-local/internal/filesystem"
	"github.com/pannier/pannier/plugins/csi-local/internal/loop"
)

// bindNode attaches the volume's image, to a device that stays until
// detachUnused, and makes the device appear at path, a file that it makes. If
// it is there already, nothing is done; otherwise check is asked first.
func (d *Driver) bindNode(ctx context.Context, u usage, id string, readOnly bool, path string, check func(usage) error) error {
	fs, n, isNode, other := u.at(path)
	switch {
	case other != nil:
		return foreign("the path of the device", id, filesystem.Describe(other))
	case fs != nil:
		return status.Errorf(codes.AlreadyExists, "volume %q is mounted at %s as a file system: take it away first", id, path)
	case isNode && n.device.ReadOnly != readOnly:
		return status.Errorf(codes.AlreadyExists,
			"volume %q is at %s already, but read-only is %t there: take it away first", id, path, n.device.ReadOnly)
	case isNode:
		return nil
	}
	if err := check(u); err != nil {
		return err
	}
	if err := d.bindNewNode(ctx, id, readOnly, path); err != nil {
		return errors.Join(err, removeTarget(path), d.detachUnused(id))
	}
	return nil
}

func (d *Driver) bindNewNode(ctx context.Context, id string, readOnly bool, path string) error {
	if err := makeFile(path); err != nil {
		return fmt.Errorf("make the target: %w", err)
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

// makeFile makes an empty file, or takes one that is there.
func makeFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return emptyFile(path)
	}
	if err != nil {
		return err
	}
	return f.Close()
}
