package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/drivers/csi-local/internal/store"
	"github.com/pannier/pannier/internal/bounded"
)

// NodeGetVolumeHealth reports problems of a volume on this node: its image is gone, or its file system had an
// error.
func (d node) NodeGetVolumeHealth(_ context.Context,
	req *csi.NodeGetVolumeHealthRequest,
) (*csi.NodeGetVolumeHealthResponse, error) {
	v, err := d.volume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	u, err := d.usage(v.ID)
	if err != nil {
		return nil, failed(err)
	}
	entries := d.imageHealth(v)
	for _, m := range u.mounts {
		if e := mountHealth(m); e != nil {
			entries = append(entries, e)
			break // all mounts are of one file system
		}
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: health(v.ID, entries)}, nil
}

// NodeGetStorageHealth reports a data directory that cannot be written to.
func (d node) NodeGetStorageHealth(context.Context,
	*csi.NodeGetStorageHealthRequest,
) (*csi.NodeGetStorageHealthResponse, error) {
	resp := &csi.NodeGetStorageHealthResponse{}
	if err := d.store.Probe(); err != nil {
		resp.BackendHealth = append(resp.BackendHealth, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			Status: csi.StorageHealthErrorType_STORAGE_UNREACHABLE, Reason: "DataDirectory", Message: err.Error(),
		})
	}
	return resp, nil
}

func health(id string, entries []*csi.VolumeHealth_VolumeHealthEntry) *csi.VolumeHealth {
	return &csi.VolumeHealth{VolumeId: id, HealthStatuses: entries}
}

func (d *Driver) imageHealth(v store.Volume) []*csi.VolumeHealth_VolumeHealthEntry {
	if !v.Missing {
		return nil
	}
	return []*csi.VolumeHealth_VolumeHealthEntry{{
		Status:  csi.VolumeHealthErrorType_DATA_LOSS,
		Reason:  "ImageMissing",
		Message: fmt.Sprintf("the volume's image is gone: restore %s", d.store.Image(v.ID)),
	}}
}

// mountHealth checks one mount of a volume; nil means healthy.
func mountHealth(m *mountinfo.Info) *csi.VolumeHealth_VolumeHealthEntry {
	if why := filesystem.ErrorState(m); why != "" {
		return &csi.VolumeHealth_VolumeHealthEntry{
			Status:  csi.VolumeHealthErrorType_DEGRADED,
			Reason:  "FileSystemReadOnly",
			Message: why + ": see the kernel log, unstage the volume and check its file system",
		}
	}
	err := probes.Do(fmt.Sprintf("%d:%d", m.Major, m.Minor), bounded.Patience, func() error { return probe(m.Mountpoint) })
	if err != nil {
		return &csi.VolumeHealth_VolumeHealthEntry{
			Status:  csi.VolumeHealthErrorType_INACCESSIBLE,
			Reason:  "FileSystemError",
			Message: fmt.Sprintf("%s cannot be used: %v", m.Mountpoint, err),
		}
	}
	return nil
}

// probes are the probes in progress, by device.
var probes bounded.Calls

// probe writes out the root directory of a file system: statfs answers also where XFS or ext4 was shut down. A block
// device is not opened.
func probe(mountpoint string) error {
	fd, err := unix.Open(mountpoint, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return nil
	case err != nil:
		return err
	}
	return errors.Join(unix.Fsync(fd), unix.Close(fd))
}

// NodeGetVolumeStats returns the bytes and inodes of a mounted volume, or the
// size of a block device, at a path where it is staged or published.
func (d node) NodeGetVolumeStats(_ context.Context,
	req *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	if req.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_path is missing")
	}
	v, err := d.volume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	at, err := d.locate(v.ID, req.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if at.node != nil {
		size, err := at.node.device.Size()
		if err != nil {
			return nil, failed(err)
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: size},
		}}, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at.fs.Mountpoint, &st); err != nil {
		return nil, failed(fmt.Errorf("stats of %s: %w", at.fs.Mountpoint, err))
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{
			Unit:      csi.VolumeUsage_BYTES,
			Total:     int64(st.Blocks) * st.Frsize,
			Available: int64(st.Bavail) * st.Frsize,
			Used:      int64(st.Blocks-st.Bfree) * st.Frsize,
		},
		{
			Unit:      csi.VolumeUsage_INODES,
			Total:     int64(st.Files),
			Available: int64(st.Ffree),
			Used:      int64(st.Files - st.Ffree),
		},
	}}, nil
}

// locate finds the volume, as a file system or a device, at a path where it is staged or published. If it is at
// neither, the status is NotFound.
func (d node) locate(id, volumePath string) (place, error) {
	none := status.Errorf(codes.NotFound, "volume %q is neither staged nor published at %q", id, volumePath)
	if !filepath.IsAbs(volumePath) {
		return place{}, none
	}
	path, err := filesystem.Resolve(volumePath)
	if errors.Is(err, os.ErrNotExist) {
		return place{}, none
	}
	if err != nil {
		return place{}, failed(err)
	}
	u, err := d.usage(id)
	if err != nil {
		return place{}, failed(err)
	}
	for _, p := range []string{path, stagedNode(path)} {
		if at := u.at(p); at.fs != nil || at.node != nil {
			return at, nil
		}
	}
	return place{}, none
}
