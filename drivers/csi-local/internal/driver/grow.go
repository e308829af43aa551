package driver

import (
	"context"
	"errors"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/drivers/csi-local/internal/store"
)

// NodeExpandVolume makes the image's new size visible to a volume's users: on the device, and in its file system.
func (d node) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse,
	error,
) {
	if req.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_path is missing")
	}
	v, end, err := d.begin("NodeExpandVolume", req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	at, err := d.locate(v.ID, req.GetVolumePath())
	if err != nil {
		return nil, err
	}
	r := req.GetCapacityRange()
	if r.GetRequiredBytes() > v.Capacity || (r.GetLimitBytes() > 0 && r.GetLimitBytes() < v.Capacity) {
		return nil, status.Errorf(codes.OutOfRange,
			"volume %q has %d bytes and capacity_range is %d to %d: call ControllerExpandVolume first",
			v.ID, v.Capacity, r.GetRequiredBytes(), r.GetLimitBytes())
	}
	u, err := d.usage(v.ID)
	if err != nil {
		return nil, failed(err)
	}
	for _, dev := range u.devices {
		if err := dev.Resize(); err != nil {
			return nil, failed(err)
		}
	}
	if at.fs != nil {
		if err := d.growMounted(ctx, u, v.Capacity); err != nil {
			return nil, err
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Capacity}, nil
}

// growMounted grows the file system through a writable mount, if it is smaller than the volume.
func (d node) growMounted(ctx context.Context, u usage, size int64) error {
	for _, m := range u.mounts {
		if u.table.At(m.Mountpoint) != m || filesystem.IsReadOnly(m) {
			continue
		}
		err := d.programs.Grow(ctx, m, size)
		if errors.Is(err, filesystem.ErrNotMounted) {
			return status.Errorf(codes.FailedPrecondition,
				"%v: run the driver with that capability, or unstage the volume and stage it again", err)
		}
		return failed(err)
	}
	return status.Errorf(codes.FailedPrecondition,
		"the file system is mounted read-only (%s): stage the volume in a mode with a writer", u)
}

// growUnmounted grows an unused file system, for kernels that do not let the driver grow it while it is mounted.
// The program could be killed halfway, so it works on a copy that then replaces the image.
func (d node) growUnmounted(ctx context.Context, v store.Volume, u usage) error {
	if len(u.devices) > 0 || v.Formatting != "" {
		return nil
	}
	fsType, size, err := filesystem.DetectFile(d.store.Image(v.ID))
	if err != nil || fsType == "" || size >= v.Capacity || filesystem.GrowsMounted(fsType) {
		return err
	}
	return d.store.ReplaceImage(v.ID, func(image *os.File) error {
		if err := d.copyImage(ctx, image, d.store.Image(v.ID)); err != nil {
			return err
		}
		return d.programs.GrowUnmounted(ctx, image.Name())
	})
}
