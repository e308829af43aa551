package bridge

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
)

type accessMode = csi.VolumeCapability_AccessMode_Mode

var accessModes = map[storage.AccessMode]accessMode{
	storage.SingleNodeReaderOnly:   csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
	storage.SingleNodeWriter:       csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
	storage.SingleNodeSingleWriter: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	storage.SingleNodeMultiWriter:  csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
	storage.MultiNodeReaderOnly:    csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
	storage.MultiNodeSingleWriter:  csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
	storage.MultiNodeMultiWriter:   csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
}

// features are what a service must have said it can do before a capability may
// carry the field or the mode.
type features struct {
	singleNodeMultiWriter bool // SINGLE_NODE_MULTI_WRITER of the service that is called
	mountGroup            bool // VOLUME_MOUNT_GROUP, which only a node service has
}

// capability is c in CSI's words.
func capability(c storage.Capability, has features) (*csi.VolumeCapability, error) {
	mode, ok := accessModes[c.AccessMode]
	if !ok {
		return nil, status.Errorf(codes.InvalidArgument, "unknown access mode %q", c.AccessMode)
	}
	vc := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: fallback(mode, has)}}
	switch c.AttachmentMode {
	case storage.BlockDevice:
		vc.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	case storage.FileSystem:
		mount := &csi.VolumeCapability_MountVolume{FsType: c.FSType, MountFlags: c.MountFlags}
		if has.mountGroup {
			mount.VolumeMountGroup = c.VolumeMountGroup
		}
		vc.AccessType = &csi.VolumeCapability_Mount{Mount: mount}
	default:
		return nil, status.Errorf(codes.InvalidArgument, "unknown attachment mode %q", c.AttachmentMode)
	}
	return vc, nil
}

// fallback keeps to the modes that the driver understands: it must accept
// SINGLE_NODE_WRITER where it has the two newer modes, and knows nothing else
// where it has not (CSI spec, "NodePublishVolume"). That one workload alone
// writes is then kept by the host's claims.
func fallback(mode accessMode, has features) accessMode {
	switch mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		if !has.singleNodeMultiWriter {
			return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
		}
	}
	return mode
}

func capabilities(cs []storage.Capability, has features) ([]*csi.VolumeCapability, error) {
	out := make([]*csi.VolumeCapability, 0, len(cs))
	for _, c := range cs {
		vc, err := capability(c, has)
		if err != nil {
			return nil, err
		}
		out = append(out, vc)
	}
	return out, nil
}
