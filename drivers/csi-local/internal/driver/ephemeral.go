package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/drivers/csi-local/internal/store"
	"github.com/pannier/pannier/internal/bytesize"
)

// An ephemeral volume is made by NodePublishVolume and deleted by NodeUnpublishVolume (Kubernetes, "CSI ephemeral
// inline volumes"). The client chooses its id. It is a file system at one path, which no other call sees.
const (
	clientPrefix = "csi.storage.k8s.io/" // of the keys of volume_context that the client adds
	ephemeralKey = clientPrefix + "ephemeral"
	sizeKey      = "size"
)

func isEphemeral(req *csi.NodePublishVolumeRequest) bool {
	return req.GetVolumeContext()[ephemeralKey] == "true"
}

// publishEphemeral makes the volume, unless it is there, and mounts it at the target path.
func (d node) publishEphemeral(ctx context.Context, req *csi.NodePublishVolumeRequest, a access) error {
	switch {
	case store.IsVolumeID(req.GetVolumeId()):
		return status.Errorf(codes.InvalidArgument, "volume_id %q: an ephemeral volume must not have the form of the other ids",
			req.GetVolumeId())
	case a.block || a.readOnly():
		return status.Error(codes.InvalidArgument,
			"volume_capability: an ephemeral volume is a file system with a writer: use mount and SINGLE_NODE_WRITER")
	}
	end, err := d.flight.begin("NodePublishVolume", req.GetVolumeId())
	if err != nil {
		return err
	}
	defer end()
	target, err := filesystem.Resolve(req.GetTargetPath())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "target_path: %v: the caller makes its parent", err)
	}
	v, err := d.makeEphemeral(ctx, req, a)
	if err != nil {
		return err
	}
	u, err := d.usage(v.ID)
	if err != nil {
		return err
	}
	opts := a.options
	if req.GetReadonly() {
		opts = opts.WithReadOnly()
	}
	switch at := u.at(target); {
	case at.other != nil:
		return foreign("target_path", v.Ephemeral, at.other)
	case len(u.elsewhere(target)) > 0:
		return status.Errorf(codes.FailedPrecondition,
			"ephemeral volume %q is published at %q already: unpublish it there first", v.Ephemeral, u.elsewhere(target))
	case at.fs != nil:
		if err := matches(at.fs, a, opts); err != nil {
			return status.Errorf(codes.AlreadyExists, "ephemeral volume %q is published at %s already, but %v: unpublish it first",
				v.Ephemeral, target, err)
		}
	default:
		if err := makeDir(target); err != nil {
			return err
		}
		if err := d.mount(ctx, v, target, a, opts); err != nil {
			return err
		}
	}
	return d.afterMount(ctx, v, target, a)
}

// makeEphemeral returns the volume, which it makes if it is not there.
func (d node) makeEphemeral(ctx context.Context, req *csi.NodePublishVolumeRequest, a access) (store.Volume, error) {
	size, err := ephemeralSize(req.GetVolumeContext())
	if err != nil {
		return store.Volume{}, status.Errorf(codes.InvalidArgument, "volume_context: %v", err)
	}
	w := wanted{
		mount: true, capacityRange: &csi.CapacityRange{RequiredBytes: size},
		Volume: store.Volume{
			ID: store.EphemeralID(req.GetVolumeId()), Ephemeral: req.GetVolumeId(), FSType: a.fsType,
		},
	}
	there, err := d.store.Volume(w.ID)
	if errors.Is(err, store.ErrNotFound) {
		err = d.create(ctx, &w)
		there = w.Volume
	}
	return there, err
}

// ephemeralSize returns the attribute size in bytes; 0: there is none.
func ephemeralSize(attributes map[string]string) (int64, error) {
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		if key != sizeKey && !strings.HasPrefix(key, clientPrefix) {
			return 0, fmt.Errorf("attribute %q is unknown: the driver takes %q only", key, sizeKey)
		}
	}
	text, given := attributes[sizeKey]
	if !given {
		return 0, nil
	}
	size, err := bytesize.Parse(text)
	if err != nil || size == 0 {
		return 0, fmt.Errorf("attribute %q is %q: write such as 1GiB", sizeKey, text)
	}
	return size, nil
}

// unpublishEphemeral unmounts an ephemeral volume from the target path and deletes it; it is not done for another
// volume. It may be repeated. The error is a status.
func (d node) unpublishEphemeral(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (done bool, err error) {
	if req.GetVolumeId() == "" || req.GetTargetPath() == "" {
		return false, nil
	}
	end, err := d.flight.begin("NodeUnpublishVolume", req.GetVolumeId())
	if err != nil {
		return false, err
	}
	defer end()
	id := store.EphemeralID(req.GetVolumeId())
	if _, err := d.store.Volume(id); errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return true, failed(d.deleteEphemeral(ctx, req.GetVolumeId(), id, req.GetTargetPath()))
}

func (d node) deleteEphemeral(ctx context.Context, client, id, target string) error {
	path, err := filesystem.Resolve(target)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return status.Errorf(codes.InvalidArgument, "target_path: %v", err)
	default:
		if _, err := d.unmountAll(ctx, id, "target_path", path); err != nil {
			return err
		}
		if err := removeTarget(path); err != nil {
			return err
		}
	}
	u, err := d.settled(ctx, id)
	if err != nil {
		return err
	}
	if len(u.devices) > 0 {
		return status.Errorf(codes.FailedPrecondition, "ephemeral volume %q is in use still (%s): end that, and repeat",
			client, u)
	}
	return d.store.DeleteVolume(id)
}

// sweepEphemeral deletes the ephemeral volumes that are not mounted: their publish was interrupted, or the host was
// rebooted. A client that repeats the publish gets a new one.
func (d *Driver) sweepEphemeral() error {
	ids, err := d.store.VolumeIDs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		v, err := d.store.Volume(id)
		if err != nil || v.Ephemeral == "" {
			continue // an unreadable record is reported to those who ask for the volume
		}
		u, err := d.usage(id)
		if err == nil && len(u.devices) == 0 {
			err = d.store.DeleteVolume(id)
		}
		if err != nil {
			d.log.Error("an ephemeral volume that is not mounted stays", "volume", v.Ephemeral, "error", err)
		}
	}
	return nil
}
