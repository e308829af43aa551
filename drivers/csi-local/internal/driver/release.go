package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
)

// known fails with NotFound when there is neither a volume with this id nor
// anything of it left on the node. A record that cannot be read is no reason to
// keep a mount.
func (d *Driver) known(id string) error {
	_, err := d.volume(id)
	if status.Code(err) != codes.NotFound {
		return nil
	}
	u, usageErr := d.usage(id)
	if usageErr != nil {
		return failed(usageErr)
	}
	if len(u.devices) > 0 {
		return nil
	}
	return err
}

// unmountAll unmounts the volume from path, as often as it is mounted there.
// Something else at that path is reported, what names the field in the request.
func (d *Driver) unmountAll(ctx context.Context, id, what, path string) error {
	for {
		u, err := d.usage(id)
		if err != nil {
			return err
		}
		at := u.at(path)
		if at.other != nil {
			return foreign(what, id, at.other)
		}
		if at == (place{}) {
			return nil
		}
		if err := filesystem.Unmount(ctx, path); err != nil {
			return err
		}
	}
}

// detachUnused frees the devices that are bound to no path: a staged block
// volume is bound below its staging path, so what is not is a leftover.
// Devices that are mounted clear themselves.
func (d *Driver) detachUnused(id string) error {
	u, err := d.usage(id)
	if err != nil {
		return err
	}
	for _, dev := range u.devices {
		bound := slices.ContainsFunc(u.nodes, func(n node) bool { return n.device == dev })
		if bound || dev.AutoClear {
			continue
		}
		if err := dev.Detach(d.store.Image(id)); err != nil {
			return err
		}
	}
	return nil
}

// removeTarget removes what the driver made to mount on: an empty directory or
// an empty file. Anything else is not the driver's, and stays. A path that does
// not exist is no error.
func removeTarget(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the target: %w", err)
	}
	if !info.IsDir() {
		if err := emptyFile(path); err != nil {
			return status.Errorf(codes.FailedPrecondition, "remove the target: %v: move it away first", err)
		}
	}
	err = os.Remove(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return status.Errorf(codes.FailedPrecondition, "remove the target: %v: move away what is in it first", err)
	}
	return nil
}

// emptyFile makes sure that path is a regular file without content, which may
// be mounted on and removed.
func emptyFile(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > 0 {
		return fmt.Errorf("%s exists and is not an empty file", path)
	}
	return nil
}
