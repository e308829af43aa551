package driver

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/drivers/csi-local/internal/loop"
)

// Recover thaws what a predecessor froze and did not live to thaw. It must be
// called before the driver serves. A volume that cannot be thawed is logged and
// tried again at the next start: it does not keep the others from working.
func (d *Driver) Recover(ctx context.Context) error {
	ids, err := d.store.Frozen()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := d.recoverFrozen(ctx, id); err != nil {
			d.log.Error("a volume stays frozen", "volume_id", id, "error", err)
		}
	}
	return nil
}

func (d *Driver) recoverFrozen(ctx context.Context, id string) error {
	u, err := d.usage(id)
	if err != nil {
		return err
	}
	switch m := u.visible(); {
	case m != nil:
		err = filesystem.Thaw(m)
	case u.hidden():
		err = d.thawUnmounted(ctx, id)
	default:
		return d.store.ClearFrozen(id)
	}
	if err != nil {
		return err
	}
	d.log.Warn("thawed a volume that an earlier process had frozen", "volume_id", id)
	return d.store.ClearFrozen(id)
}

// thawUnmounted thaws a file system that was unmounted while it was frozen. The
// freeze keeps it, and its device, alive; who mounts the device gets it back.
func (d *Driver) thawUnmounted(ctx context.Context, id string) (err error) {
	dev, hold, err := loop.Acquire(ctx, d.store.Image(id), loop.Options{AutoClear: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Close()) }()
	fsType, _, err := filesystem.DetectFile(dev.Path)
	if err != nil {
		return err
	}
	dir, err := d.store.Scratch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(dir)) }()
	var opts filesystem.Options
	err = filesystem.Mount(dev.Path, dir, fsType, opts)
	if errors.Is(err, unix.EBUSY) { // it was mounted read-only
		err = filesystem.Mount(dev.Path, dir, fsType, opts.WithReadOnly())
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, filesystem.Unmount(ctx, dir)) }()
	table, err := filesystem.ReadTable()
	if err != nil {
		return err
	}
	m := table.At(dir)
	if m == nil {
		return errors.New("the mount that was to thaw it is gone")
	}
	return filesystem.Thaw(m)
}
