package faultydriver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// folder returns the directory of a volume's files if Config.Mounts is set.
func (d *Driver) folder(volume string) string {
	return filepath.Join(filepath.Dir(d.config.Socket), "volumes", volume)
}

func (s *services) NodeStageVolume(_ context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse,
	error,
) {
	if err := s.backend.exists(req.GetVolumeId()); err != nil {
		return nil, err
	}
	if attached := s.d.AttachedTo(req.GetVolumeId()); s.config.Strict {
		switch {
		case !slices.Contains(attached, s.config.NodeID):
			return nil, status.Errorf(codes.FailedPrecondition, "the volume is attached to %q, not here", attached)
		case req.GetPublishContext()["device"] == "":
			return nil, status.Error(codes.InvalidArgument, "the publish context names no device")
		}
	}
	if s.config.Mounts {
		return &csi.NodeStageVolumeResponse{}, s.d.bind(s.d.folder(req.GetVolumeId()), req.GetStagingTargetPath(), false)
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (s *services) NodeUnstageVolume(_ context.Context,
	req *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, s.unbind(req.GetStagingTargetPath())
}

// NodePublishVolume makes the target, as the spec asks of a driver.
func (s *services) NodePublishVolume(_ context.Context,
	req *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	if err := s.backend.exists(req.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := os.Mkdir(req.GetTargetPath(), 0o755); err != nil && !os.IsExist(err) {
		return nil, status.Errorf(codes.Internal, "make the target: %v", err)
	}
	if !s.config.Mounts {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	source := req.GetStagingTargetPath()
	if source == "" {
		source = s.d.folder(req.GetVolumeId())
	}
	return &csi.NodePublishVolumeResponse{}, s.d.bind(source, req.GetTargetPath(), req.GetReadonly())
}

func (s *services) NodeUnpublishVolume(_ context.Context,
	req *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := s.unbind(req.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := os.Remove(req.GetTargetPath()); err != nil && !os.IsNotExist(err) {
		return nil, status.Errorf(codes.Internal, "remove the target: %v", err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// bind mounts source on target, unless something is mounted there already.
func (d *Driver) bind(source, target string, readonly bool) error {
	if mounted, err := mountinfo.Mounted(target); err != nil || mounted {
		return internal(err)
	}
	if err := os.MkdirAll(source, 0o755); err != nil {
		return internal(err)
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return status.Errorf(codes.Internal, "bind %s on %s: %v", source, target, err)
	}
	d.mu.Lock()
	d.mounted = append(d.mounted, target)
	d.mu.Unlock()
	if !readonly {
		return nil
	}
	return internal(unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

func (s *services) unbind(target string) error {
	if !s.config.Mounts {
		return nil
	}
	return unbind(target)
}

// unbind succeeds if nothing is mounted.
func unbind(target string) error {
	err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return internal(err)
}

func internal(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.Internal, err.Error())
}

// unmountAll unmounts what a test left mounted, newest first.
func (d *Driver) unmountAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, target := range slices.Backward(d.mounted) {
		if err := unbind(target); err != nil {
			d.t.Errorf("take away the mount on %s: %v", target, err)
		}
	}
}
