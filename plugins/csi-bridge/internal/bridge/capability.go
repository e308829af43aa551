package bridge

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/driver"
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

// features are abilities that a service must have reported before a capability may use the field or the mode.
type features struct {
	singleNodeMultiWriter bool // SINGLE_NODE_MULTI_WRITER of the service that is called
	mountGroup            bool // VOLUME_MOUNT_GROUP, which only a node service has
}

// capability converts c to CSI.
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

// fallback returns a mode that the driver understands: a driver with the two newer modes must accept
// SINGLE_NODE_WRITER, and a driver without them knows nothing else (CSI spec, "NodePublishVolume"). The host's
// claims then ensure that only one workload writes.
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

// ValidateVolume implements storage.Storage. If the driver cannot be asked or does not confirm, the volume is
// accepted with a warning, because some drivers never confirm. What the driver confirms is compared with the
// request.
func (b *Bridge) ValidateVolume(ctx context.Context, d storage.Driver, req storage.ValidateRequest) ([]string, error) {
	op := onVolume(driver.ValidateVolume, req.Volume)
	op.Redactor = driver.NewRedactor(req.Volume.Secrets, append(slices.Clone(req.Capabilities), req.Volume.Capability)...)
	warnings, err := do(ctx, b, d, op, func(ctx context.Context, c *driver.Conn) ([]string, error) {
		caps, err := c.ControllerCaps(ctx)
		if err != nil {
			return nil, err
		}
		if caps == nil {
			return []string{"the driver has no controller service: the volume could not be validated"}, nil
		}
		asked, err := capabilities(req.Capabilities, features{singleNodeMultiWriter: caps.SingleNodeMultiWriter})
		if err != nil {
			return nil, err
		}
		resp, err := c.Controller.ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId:           req.Volume.ExternalID,
			VolumeContext:      req.Volume.Context,
			VolumeCapabilities: asked,
			Parameters:         req.Parameters,
			Secrets:            req.Volume.Secrets,
		})
		if status.Code(err) == codes.Unimplemented {
			return []string{"the driver does not implement ValidateVolumeCapabilities: the volume could not be validated"}, nil
		}
		if err != nil {
			return nil, err
		}
		return judge(asked, resp)
	})
	return warnings, err
}

// judge compares the capabilities that the driver confirmed with the requested ones. One match is enough;
// differences of the other requested capabilities are then warnings.
func judge(asked []*csi.VolumeCapability, resp *csi.ValidateVolumeCapabilitiesResponse) ([]string, error) {
	confirmed := resp.GetConfirmed().GetVolumeCapabilities()
	if len(confirmed) == 0 {
		warning := "the driver did not confirm the capabilities"
		if m := resp.GetMessage(); m != "" {
			warning += ": " + m
		}
		return []string{warning}, nil
	}
	var all []string
	matched := false
	for _, want := range asked {
		differences, ok := compareAny(want, confirmed)
		matched = matched || ok
		all = append(all, differences...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if matched || len(asked) == 0 {
		return all, nil
	}
	return nil, status.Errorf(codes.FailedPrecondition, "the driver confirmed other capabilities than were asked: %s",
		strings.Join(all, "; "))
}

// compareAny compares one capability with each confirmed one. ok is true if one matches; otherwise differences has
// those of all.
func compareAny(want *csi.VolumeCapability, confirmed []*csi.VolumeCapability) (differences []string, ok bool) {
	for _, got := range confirmed {
		d := compare(want, got)
		if len(d) == 0 {
			return nil, true
		}
		differences = append(differences, d...)
	}
	return differences, false
}

// compare lists the fields in which got differs from what was requested. A field that a driver leaves out of its
// answer is no difference (old drivers may return only the access mode), and neither is a filesystem type that was
// left to the driver: an empty string means unspecified (CSI spec, VolumeCapability).
func compare(want, got *csi.VolumeCapability) []string {
	var d []string
	if w, g := want.GetAccessMode().GetMode(), got.GetAccessMode().GetMode(); w != g {
		d = append(d, fmt.Sprintf("requested access mode %v, got %v", w, g))
	}
	wantMount, gotMount := want.GetMount(), got.GetMount()
	switch {
	case gotMount != nil && wantMount == nil:
		d = append(d, "'file-system' access type was not requested but was validated by the controller")
	case got.GetBlock() != nil && want.GetBlock() == nil:
		d = append(d, "'block-device' access type was not requested but was validated by the controller")
	case gotMount != nil:
		if w, g := wantMount.GetFsType(), gotMount.GetFsType(); w != "" && w != g {
			d = append(d, fmt.Sprintf("requested filesystem type %v, got %v", w, g))
		}
		if !sameFlags(wantMount.GetMountFlags(), gotMount.GetMountFlags()) {
			d = append(d, "requested mount flags did not match available capabilities")
		}
	}
	return d
}

// sameFlags ignores the order, which drivers need not preserve.
func sameFlags(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
