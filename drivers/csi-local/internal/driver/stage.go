package driver

import (
	"cmp"
	"context"
	"errors"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/drivers/csi-local/internal/loop"
	"github.com/pannier/pannier/drivers/csi-local/internal/sparse"
	"github.com/pannier/pannier/drivers/csi-local/internal/store"
	"github.com/pannier/pannier/internal/mountgroup"
)

// NodeStageVolume attaches a volume's image to a loop device and mounts its
// file system at the staging path, or binds the device below it.
func (d node) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse,
	error,
) {
	if req.GetStagingTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "staging_target_path is missing")
	}
	a, err := nodeCapability(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	v, end, err := d.begin("NodeStageVolume", req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	path, err := stagePath(req.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	u, err := d.usage(v.ID)
	if err != nil {
		return nil, failed(err)
	}
	if a.block {
		err = d.stageBlock(ctx, v, u, path, a)
	} else {
		err = d.stageFileSystem(ctx, v, u, path, a)
	}
	if err != nil {
		return nil, failed(err)
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// stageFileSystem mounts the volume at path unless it is mounted there already. The steps after the mount are
// repeated when the call is.
func (d node) stageFileSystem(ctx context.Context, v store.Volume, u usage, path string, a access) error {
	if len(u.nodes) > 0 {
		return status.Errorf(codes.FailedPrecondition, "volume %q is staged as a block device (%s): unstage it first", v.ID,
			u)
	}
	opts := a.stageOptions()
	switch at := u.at(path); {
	case at.other != nil:
		return foreign("staging_target_path", v.ID, at.other)
	case at.fs != nil:
		if err := matches(at.fs, a, opts); err != nil {
			return status.Errorf(codes.AlreadyExists, "volume %q is staged at %s already, but %v: unstage it first", v.ID, path,
				err)
		}
	default:
		if err := d.growUnmounted(ctx, v, u); err != nil {
			return err
		}
		if err := d.mountSettled(ctx, v, path, a, opts); err != nil {
			return err
		}
	}
	return d.afterMount(ctx, v, path, a)
}

// matches returns how an existing mount differs from what a capability asks for.
func matches(m *mountinfo.Info, a access, opts filesystem.Options) error {
	if a.fsType != "" && a.fsType != m.FSType {
		return errors.New("its file system is " + m.FSType)
	}
	return opts.Match(m)
}

// mountSettled mounts the volume. A mount with the opposite of read-only, which has ended here, may last a little
// longer in another namespace.
func (d node) mountSettled(ctx context.Context, v store.Volume, path string, a access, opts filesystem.Options) error {
	err := d.mount(ctx, v, path, a, opts)
	if errors.Is(err, unix.EBUSY) {
		if _, err := d.settled(ctx, v.ID); err != nil {
			return err
		}
		err = d.mount(ctx, v, path, a, opts)
	}
	if errors.Is(err, unix.EBUSY) {
		return status.Errorf(codes.FailedPrecondition,
			"%v: it is mounted elsewhere with the opposite of read-only: unstage it there first", err)
	}
	return err
}

// mount attaches the image and mounts it. The device detaches itself when unused: this process holds it until the
// mount does.
func (d node) mount(ctx context.Context, v store.Volume, path string, a access, opts filesystem.Options) error {
	dev, hold, err := loop.Acquire(ctx, d.store.Image(v.ID), loop.Options{AutoClear: true})
	if err != nil {
		return err
	}
	defer hold.Close()
	if err := errors.Join(dev.Resize(), dev.SetReadAhead(readAhead(v))); err != nil {
		return err
	}
	fsType, err := d.ensureFormatted(ctx, v, dev, a)
	if err != nil {
		return err
	}
	return filesystem.Mount(dev.Path, path, fsType, opts)
}

// ensureFormatted returns the file system on the device, and makes one if the device has never had any data.
func (d node) ensureFormatted(ctx context.Context, v store.Volume, dev loop.Device, a access) (string, error) {
	wanted := cmp.Or(a.fsType, v.FSType, filesystem.Default)
	if v.Formatting != "" {
		return wanted, d.format(ctx, v, dev, wanted, true)
	}
	image, err := os.Open(d.store.Image(v.ID))
	if err != nil {
		return "", err
	}
	defer image.Close()
	found, _, err := filesystem.Detect(image)
	switch {
	case err != nil:
		return "", err
	case found != "" && a.fsType != "" && a.fsType != found:
		return "", status.Errorf(codes.FailedPrecondition,
			"volume %q holds %s and the capability asks for %s: ask for %s, or for none", v.ID, found, a.fsType, found)
	case found != "":
		return found, nil
	}
	blank, err := sparse.Blank(ctx, image)
	if err != nil {
		return "", err
	}
	if !blank {
		return "", status.Errorf(codes.FailedPrecondition,
			"volume %q holds data that is neither ext4 nor xfs and is not overwritten: stage it as a block device, or make a new volume", v.ID)
	}
	return wanted, d.format(ctx, v, dev, wanted, false)
}

// format makes a file system between two updates of the record: the first one marks what an interrupted mkfs
// leaves behind as no data.
func (d node) format(ctx context.Context, v store.Volume, dev loop.Device, fsType string, again bool) error {
	if err := filesystem.Supported(fsType); err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	if minimum := filesystem.MinSize(fsType); v.Capacity < minimum {
		return status.Errorf(codes.FailedPrecondition,
			"volume %q has %d bytes and %s needs %d: expand it first", v.ID, v.Capacity, fsType, minimum)
	}
	v.Formatting = fsType
	if err := d.store.UpdateVolume(v); err != nil {
		return err
	}
	if err := d.programs.Format(ctx, fsType, dev.Path, again); err != nil {
		return err
	}
	v.FSType, v.Formatting = fsType, ""
	return d.store.UpdateVolume(v)
}

// afterMount grows the mounted file system to the volume's size, and applies the capability's group.
func (d node) afterMount(ctx context.Context, v store.Volume, path string, a access) error {
	u, err := d.usage(v.ID)
	if err != nil {
		return err
	}
	m := u.at(path).fs
	if m == nil {
		return status.Errorf(codes.Internal, "volume %q was mounted at %s and is not there any more", v.ID, path)
	}
	if !filesystem.IsReadOnly(m) && filesystem.GrowsMounted(m.FSType) {
		if err := d.programs.Grow(ctx, m, v.Capacity); err != nil {
			return err
		}
	}
	if a.hasGroup {
		err := mountgroup.Set(ctx, path, a.group)
		if errors.Is(err, unix.EROFS) {
			return status.Errorf(codes.FailedPrecondition, "volume_mount_group: %v: the mode has no writer", err)
		}
		return err
	}
	return nil
}

// stageBlock attaches the image to a device that stays until it is unstaged, and binds the device below the
// staging path. A bound node does not hold its device open, so this device cannot detach itself.
func (d node) stageBlock(ctx context.Context, v store.Volume, u usage, path string, a access) error {
	switch at := u.at(path); {
	case len(u.mounts) > 0:
		return status.Errorf(codes.FailedPrecondition, "volume %q is staged as a file system (%s): unstage it first", v.ID, u)
	case at.other != nil:
		return foreign("staging_target_path", v.ID, at.other)
	case u.hidden():
		return status.Errorf(codes.Aborted, "volume %q is still in use as a file system (%s): repeat when it is not", v.ID, u)
	}
	if v.Formatting != "" {
		// From now on the bytes of a half-made file system may be data.
		v.Formatting = ""
		if err := d.store.UpdateVolume(v); err != nil {
			return err
		}
	}
	return d.bindNode(ctx, u, v.ID, a.readOnly(), stagedNode(path), func(usage) error { return nil })
}

// NodeUnstageVolume reverses NodeStageVolume. It needs only the volume's id and no record of it, and finishes what
// an earlier call or a crash left unfinished.
func (d node) NodeUnstageVolume(ctx context.Context,
	req *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, d.release(ctx, "NodeUnstageVolume", req.GetVolumeId(), "staging_target_path",
		req.GetStagingTargetPath(), func(path string) []string { return []string{path, stagedNode(path)} })
}
