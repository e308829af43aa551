package driver

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
)

// errCannot means that a well-formed capability is not supported by the driver.
var errCannot = errors.New("capability not supported")

// access is a parsed volume capability.
type access struct {
	mode     csi.VolumeCapability_AccessMode_Mode
	block    bool
	fsType   string // as requested; empty: whatever the volume has
	options  filesystem.Options
	hasGroup bool
	group    int // the group that gets the file system's root
}

// readOnly reports whether the mode has no writer.
func (a access) readOnly() bool {
	return a.mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY ||
		a.mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
}

// stageOptions returns the flags to mount the file system with.
func (a access) stageOptions() filesystem.Options {
	if a.readOnly() {
		return a.options.WithReadOnly()
	}
	return a.options
}

// parseCapability parses one capability. The error wraps errCannot if the driver does not support it; any other
// error means a malformed request.
func parseCapability(c *csi.VolumeCapability) (access, error) {
	a := access{mode: c.GetAccessMode().GetMode()}
	switch a.mode {
	case csi.VolumeCapability_AccessMode_UNKNOWN:
		return a, errors.New("volume_capability.access_mode is missing")
	case csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return a, fmt.Errorf("%w: access mode %s, as the volume is on this host's disk: use a SINGLE_NODE mode", errCannot,
			a.mode)
	}
	if _, ok := csi.VolumeCapability_AccessMode_Mode_name[int32(a.mode)]; !ok {
		return a, fmt.Errorf("%w: access mode %d is newer than this driver", errCannot, a.mode)
	}
	switch {
	case c.GetBlock() != nil:
		a.block = true
		return a, nil
	case c.GetMount() == nil:
		return a, errors.New("volume_capability.access_type is missing: set block or mount")
	}
	var err error
	if a.options, err = filesystem.ParseOptions(c.GetMount().GetMountFlags()); err != nil {
		return a, fmt.Errorf("volume_capability.mount.mount_flags: %w", err)
	}
	if a.fsType = c.GetMount().GetFsType(); a.fsType != "" {
		if err := filesystem.Supported(a.fsType); err != nil {
			return a, fmt.Errorf("%w: volume_capability.mount.fs_type: %w", errCannot, err)
		}
	}
	if group := c.GetMount().GetVolumeMountGroup(); group != "" {
		gid, err := strconv.ParseUint(group, 10, 31)
		if err != nil {
			return a, fmt.Errorf("volume_capability.mount.volume_mount_group is %q: use a numeric group id", group)
		}
		a.hasGroup, a.group = true, int(gid)
	}
	return a, nil
}

// parseCapabilities parses the capabilities of CreateVolume and ValidateVolumeCapabilities, all of which must be
// supported. It returns the one file system type that they ask for, if any, and whether one of them is a file
// system.
func parseCapabilities(caps []*csi.VolumeCapability) (fsType string, mount bool, err error) {
	if len(caps) == 0 {
		return "", false, errors.New("volume_capabilities are missing")
	}
	for i, c := range caps {
		a, err := parseCapability(c)
		if err != nil {
			return "", false, fmt.Errorf("volume_capabilities[%d]: %w", i, err)
		}
		mount = mount || !a.block
		if a.fsType != "" && fsType != "" && a.fsType != fsType {
			return "", false, fmt.Errorf("volume_capabilities ask for %s and for %s: a volume has one file system", fsType,
				a.fsType)
		}
		if fsType == "" {
			fsType = a.fsType
		}
	}
	return fsType, mount, nil
}

// nodeCapability is parseCapability with the codes of the node service: the specification demands
// FAILED_PRECONDITION for what exceeds a volume's capabilities.
func nodeCapability(c *csi.VolumeCapability) (access, error) {
	if c == nil {
		return access{}, status.Error(codes.InvalidArgument, "volume_capability is missing")
	}
	a, err := parseCapability(c)
	switch {
	case errors.Is(err, errCannot):
		return a, status.Error(codes.FailedPrecondition, err.Error())
	case err != nil:
		return a, status.Error(codes.InvalidArgument, err.Error())
	}
	return a, nil
}
