package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/drivers/csi-local/internal/store"
)

const (
	// fsTypeParameter is the only parameter of CreateVolume.
	fsTypeParameter = "fsType"
	// maxName is the longest name, in bytes (CSI: Size Limits).
	maxName = 128
)

// wanted is a parsed CreateVolume request: the volume to make, and the source of its content.
type wanted struct {
	store.Volume
	mount         bool // it needs a file system
	capacityRange *csi.CapacityRange
	source        int64 // size of the source in bytes; 0: none
	fill          func(ctx context.Context, image *os.File) error
}

// CreateVolume makes a sparse image, empty or as a copy of a snapshot or another volume. The id is derived from
// the name, so the call can be repeated.
func (d controller) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	w, err := parseCreate(req)
	if err != nil {
		return nil, err
	}
	if in := req.GetAccessibilityRequirements().GetRequisite(); len(in) > 0 && !slices.ContainsFunc(in, d.isIn) {
		return nil, status.Errorf(codes.ResourceExhausted,
			"accessibility_requirements do not include this node, %s=%s: ask the driver on one that they include",
			topologyKey, d.nodeID)
	}
	ids := []string{w.ID}
	if w.Source.VolumeID != "" {
		ids = append(ids, w.Source.VolumeID)
	}
	end, err := d.flight.begin("CreateVolume", ids...)
	if err != nil {
		return nil, err
	}
	defer end()

	existing, err := d.store.Volume(w.ID)
	switch {
	case err == nil:
		if why := w.conflict(existing); why != "" {
			return nil, status.Errorf(codes.AlreadyExists,
				"volume %q exists as %q, but %s: use another name or the same arguments", req.GetName(), existing.ID, why)
		}
		return &csi.CreateVolumeResponse{Volume: d.csiVolume(existing)}, nil
	case !errors.Is(err, store.ErrNotFound):
		return nil, failed(err)
	}
	if err := d.create(ctx, &w); err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: d.csiVolume(w.Volume)}, nil
}

// create makes the volume and fills in its capacity.
func (d *Driver) create(ctx context.Context, w *wanted) error {
	if err := d.openSource(w); err != nil {
		return err
	}
	if w.FSType != "" {
		if err := filesystem.Supported(w.FSType); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
	}
	var err error
	minimum := max(w.source, filesystem.MinSize(w.FSType))
	if w.Capacity, err = chooseCapacity(w.capacityRange, minimum, cmp.Or(w.source, defaultCapacity)); err != nil {
		return err
	}
	k, err := d.disk()
	if err != nil {
		return err
	}
	if err := k.fits(w.Capacity, w.Capacity); err != nil {
		return err
	}
	w.CreatedAt = time.Now().UTC()
	return failed(d.store.CreateVolume(w.Volume, func(image *os.File) error { return w.fill(ctx, image) }))
}

// openSource looks up the source and adopts the properties that a copy inherits.
func (d *Driver) openSource(w *wanted) error {
	var fsType, formatting string
	switch {
	case w.Source.SnapshotID != "":
		snap, err := d.snapshot(w.Source.SnapshotID)
		if err != nil {
			return err
		}
		fsType, formatting, w.source = snap.FSType, snap.Formatting, snap.Size
		w.fill = d.fillFromSnapshot(snap)
	case w.Source.VolumeID != "":
		v, err := d.presentVolume(w.Source.VolumeID)
		if err != nil {
			return err
		}
		fsType, formatting, w.source = v.FSType, v.Formatting, v.Capacity
		w.fill = d.fillFromVolume(v)
	default:
		w.fill = func(context.Context, *os.File) error { return nil }
		if w.mount {
			w.FSType = cmp.Or(w.FSType, filesystem.Default)
		}
		return nil
	}
	if fsType != "" && w.FSType != "" && fsType != w.FSType {
		return status.Errorf(codes.InvalidArgument,
			"the source's file system is %s, a volume with %s cannot be made of it", fsType, w.FSType)
	}
	w.FSType = cmp.Or(fsType, w.FSType)
	w.Formatting = formatting
	return nil
}

// conflict returns how an existing volume of this name differs from the wanted one; empty: it does not.
func (w wanted) conflict(v store.Volume) string {
	required, limit := w.capacityRange.GetRequiredBytes(), w.capacityRange.GetLimitBytes()
	switch {
	case v.Capacity < required, limit > 0 && v.Capacity > limit:
		return fmt.Sprintf("it has %d bytes and capacity_range is %d to %d", v.Capacity, required, limit)
	case !maps.Equal(v.Parameters, w.Parameters):
		return "it has other parameters"
	case v.Source != w.Source:
		return "it has another volume_content_source"
	case v.FSType != "" && w.FSType != "" && v.FSType != w.FSType:
		return fmt.Sprintf("its file system is %s", v.FSType)
	}
	return ""
}

// parseCreate checks everything that can be checked without the disk.
func parseCreate(req *csi.CreateVolumeRequest) (wanted, error) {
	if err := checkName(req.GetName()); err != nil {
		return wanted{}, status.Errorf(codes.InvalidArgument, "name: %v", err)
	}
	fsType, mount, err := parseCapabilities(req.GetVolumeCapabilities())
	if err != nil {
		return wanted{}, status.Error(codes.InvalidArgument, err.Error())
	}
	fromParameter, err := parseParameters(req.GetParameters())
	if err != nil {
		return wanted{}, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := checkMutable(req.GetMutableParameters()); err != nil {
		return wanted{}, status.Errorf(codes.InvalidArgument, "mutable_parameters: %v", err)
	}
	w := wanted{mount: mount, capacityRange: req.GetCapacityRange(), Volume: store.Volume{
		ID:         store.VolumeID(req.GetName()),
		Name:       req.GetName(),
		Parameters: req.GetParameters(),
		Mutable:    req.GetMutableParameters(),
	}}
	if w.FSType, err = chooseFSType(fsType, fromParameter); err != nil {
		return wanted{}, status.Error(codes.InvalidArgument, err.Error())
	}
	if src := req.GetVolumeContentSource(); src != nil {
		w.Source = store.Source{VolumeID: src.GetVolume().GetVolumeId(), SnapshotID: src.GetSnapshot().GetSnapshotId()}
		if w.Source == (store.Source{}) {
			return wanted{}, status.Error(codes.InvalidArgument,
				"volume_content_source names neither a snapshot_id nor a volume_id")
		}
	}
	return w, nil
}

// checkName checks a name by the rules of the specification.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("it is missing")
	case len(name) > maxName:
		return fmt.Errorf("it has %d bytes, %d are allowed", len(name), maxName)
	case strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("it has a control character")
	}
	return nil
}

// parseParameters returns the file system type in the parameters.
func parseParameters(parameters map[string]string) (fsType string, err error) {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if key != fsTypeParameter {
			return "", fmt.Errorf("parameter %q is unknown: the driver takes %q only", key, fsTypeParameter)
		}
	}
	if fsType = parameters[fsTypeParameter]; fsType == "" {
		return "", nil
	}
	if err := filesystem.Supported(fsType); err != nil {
		return "", fmt.Errorf("parameter %q: %w", fsTypeParameter, err)
	}
	return fsType, nil
}

// chooseFSType returns the file system that the capability or the parameter asks for; empty if neither does.
func chooseFSType(capability, parameter string) (string, error) {
	if capability != "" && parameter != "" && capability != parameter {
		return "", fmt.Errorf("parameter %q is %s and the volume capability asks for %s", fsTypeParameter, parameter,
			capability)
	}
	return cmp.Or(capability, parameter), nil
}

func (d *Driver) csiVolume(v store.Volume) *csi.Volume {
	out := &csi.Volume{
		VolumeId: v.ID, CapacityBytes: v.Capacity, AccessibleTopology: []*csi.Topology{d.topology()},
	}
	switch {
	case v.Source.SnapshotID != "":
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.Source.SnapshotID},
		}}
	case v.Source.VolumeID != "":
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.Source.VolumeID},
		}}
	}
	return out
}

const (
	// defaultCapacity is the size of a volume without a requested capacity, in bytes.
	defaultCapacity = 1 << 30
	// granule is what capacities are rounded up to, in bytes: a block of the file systems. Where that exceeds the limit,
	// as with "10GB" for least and most, it is a sector, which is the least that a loop device can have.
	granule, sector = 4096, 512
)

// disk is the room on the host's disk, in bytes.
type disk struct{ total, available int64 }

// chooseCapacity picks a size in the range that is also at least minimum (of the file system, or of the source).
// If nothing is required it is fallback, reduced to the limit. The error is a status.
func chooseCapacity(r *csi.CapacityRange, minimum, fallback int64) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case required < 0 || limit < 0:
		return 0, status.Error(codes.OutOfRange, "capacity_range has a negative size")
	case limit > 0 && required > limit:
		return 0, status.Errorf(codes.OutOfRange, "capacity_range requires %d bytes and limits to %d", required, limit)
	case required > 1<<62:
		return 0, status.Errorf(codes.OutOfRange, "capacity_range requires %d bytes, more than any disk has", required)
	}
	size := required
	if size == 0 {
		size = fallback
		if limit > 0 {
			size = min(size, limit/granule*granule)
		}
	}
	size = max(size, minimum)
	switch rounded, least := roundUp(size, granule), roundUp(size, sector); {
	case limit == 0 || rounded <= limit:
		return rounded, nil
	case least <= limit:
		return least, nil
	case size <= limit:
		return 0, status.Errorf(codes.OutOfRange, "capacity_range is %d to %d bytes, and a volume's size is a multiple of %d: "+
			"raise limit_bytes (capacity_max) to %d", size, limit, sector, least)
	default:
		return 0, status.Errorf(codes.OutOfRange, "capacity_range limits to %d bytes, the volume needs at least %d: "+
			"raise limit_bytes (capacity_max)", limit, least)
	}
}

func roundUp(size, unit int64) int64 { return (size + unit - 1) / unit * unit }

// fits checks whether extra bytes for a volume of size bytes are available. Volumes are sparse, and space for
// later writes is not reserved.
func (k disk) fits(size, extra int64) error {
	if size > k.total {
		return status.Errorf(codes.OutOfRange, "%d bytes are more than the host's disk has (%d)", size, k.total)
	}
	if extra > k.available {
		return status.Errorf(codes.ResourceExhausted,
			"%d more bytes are needed and %d are free on the host's disk: free some space or ask for less", extra, k.available)
	}
	return nil
}

func (d *Driver) disk() (disk, error) {
	total, available, err := d.store.Space()
	if err != nil {
		return disk{}, failed(err)
	}
	return disk{total, available}, nil
}
