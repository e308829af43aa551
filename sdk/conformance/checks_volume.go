package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
)

var volumeChecks = []*Check{
	{
		ID:    "volume.capacity",
		kind:  storage.Kind,
		Says:  "A new volume's capacity is within the requested bounds, in the answer and in the published file system; or Create fails with OutOfRange.",
		Fix:   "Make the volume as large as capacity_min demands and no larger than capacity_max, or return OutOfRange. Report the real capacity.",
		after: stored,
		run:   inLab(checkCapacity),
	},
	{
		ID:    "volume.expanded",
		kind:  storage.Kind,
		Says:  "After Expand and ExpandNode the published file system has the new size, and its data.",
		Fix:   "In ExpandNode, grow the device and then the file system (resize2fs, xfs_growfs). Set node_expansion_required in Expand if that is necessary.",
		after: append([]string{"data.kept"}, stored...),
		run:   inLab(checkExpanded),
	},
	{
		ID:    "volume.same",
		kind:  storage.Kind,
		Says:  "Create with the name of an existing volume returns that volume with its data, or, if the request does not fit it, AlreadyExists, or OutOfRange for a capacity that the driver never makes.",
		Fix:   "Store with a volume what it was made from. Compare capacity, source and parameters before you return an existing volume.",
		after: append([]string{"data.kept"}, stored...),
		run:   inLab(checkSame),
	},
	{
		ID:    "volume.deleted",
		kind:  storage.Kind,
		Says:  "After Delete the volume is gone: ValidateVolume returns NotFound, List does not have it, and a new volume of its name is empty.",
		Fix:   "Delete the volume and its data before you report success.",
		after: append([]string{"work.refuse", "data.kept"}, stored...),
		run:   inLab(checkDeleted),
	},
	{
		ID:    "stats.moves",
		kind:  storage.Kind,
		Says:  "VolumeStats follows what is written to the volume.",
		Fix:   "Ask the published file system (statfs(2) of volume_path) at each call.",
		after: stored,
		run:   inLab(checkStats),
	},
}

// fileSystem is a published file system.
type fileSystem struct {
	total  int64 // bytes
	shared bool  // it is larger than the volume, which is a directory in it
}

// fileSystem returns what is published at "a". A directory may have a capacity of its own, which VolumeStats reports.
func (l *lab) fileSystem(ctx context.Context, v *volume) (fileSystem, error) {
	mount, err := once(v.target("a"))
	if err != nil {
		return fileSystem{}, err
	}
	var s unix.Statfs_t
	if err := unix.Statfs(v.target("a"), &s); err != nil {
		return fileSystem{}, fmt.Errorf("statfs: %w", err)
	}
	fs := fileSystem{total: int64(s.Blocks) * s.Bsize, shared: mount.Root != "/"}
	if !fs.shared || !l.fp.Node.VolumeStats {
		return fs, nil
	}
	usage, err := l.usage(ctx, v)
	if usage.Total != fs.total {
		fs = fileSystem{total: usage.Total}
	}
	return fs, err
}

// recorded returns the capacity that the driver reports for a volume now; 0: none.
func (l *lab) recorded(ctx context.Context, v *volume) (int64, error) {
	var listed storage.ListedVolume
	err := l.do(ctx, "Get", func(ctx context.Context, _ grpc.ClientConnInterface) (err error) {
		listed, err = l.client().Get(ctx, v.driver, v.Volume)
		return err
	})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return 0, nil
	case err == nil && listed.ExternalID != v.ExternalID:
		err = fmt.Errorf("ask for %q: Get returns %q", v.ExternalID, listed.ExternalID)
	}
	return listed.Capacity, err
}

// usable is how much of a device of that size a file system offers at least: the rest is for its log and its inodes.
func usable(size int64) int64 { return size * 7 / 10 }

const errShared = skip("the volume is a directory of a larger file system, so its capacity cannot be seen")

func checkCapacity(ctx context.Context, l *lab) error {
	v, err := l.another()
	if err != nil {
		return err
	}
	const limit = 2 * volumeSize
	v.request.CapacityMax = limit
	switch err := l.made(ctx, v); {
	case status.Code(err) == codes.OutOfRange:
		return nil // the driver makes volumes of other sizes
	case err != nil:
		return err
	}
	if v.capacity != 0 && (v.capacity < volumeSize || v.capacity > limit) {
		return fmt.Errorf("its capacity is %d bytes; %d to %d were requested", v.capacity, volumeSize, limit)
	}
	recorded, err := l.recorded(ctx, v)
	if err != nil {
		return err
	}
	if recorded != 0 && recorded != v.capacity {
		return fmt.Errorf("its capacity is %d bytes according to Create, and %d according to Get", v.capacity, recorded)
	}
	if err := l.publish(ctx, v, "a"); err != nil {
		return err
	}
	fs, err := l.fileSystem(ctx, v)
	switch {
	case err != nil:
		return err
	case fs.total < usable(volumeSize):
		return fmt.Errorf("the published file system has %d bytes; %d were requested", fs.total, volumeSize)
	case fs.shared:
		return errShared
	case fs.total > limit:
		return fmt.Errorf("the published file system has %d bytes; at most %d were requested", fs.total, limit)
	}
	return nil
}

func checkExpanded(ctx context.Context, l *lab) error {
	if !l.fp.Controller.Expand && !l.fp.Node.Expand {
		return skip("needs a driver that expands volumes")
	}
	if err := l.creates(); err != nil {
		return err
	}
	v, content, err := l.filled(ctx)
	if err != nil {
		return err
	}
	before, err := l.fileSystem(ctx, v)
	if err != nil {
		return err
	}
	was := max(v.capacity, volumeSize)
	online, size := l.fp.Controller.OnlineExpand, 2*was
	if online {
		err = l.expand(ctx, v, size)
		online = status.Code(err) != codes.FailedPrecondition // it is in use
	}
	if !online {
		err = l.expandUnused(ctx, v, size)
	}
	if err != nil {
		return err
	}
	if err := v.has("a", content, "after the expansion"); err != nil {
		return err
	}
	recorded, err := l.recorded(ctx, v)
	if err != nil {
		return err
	}
	if recorded != 0 && recorded < size {
		return fmt.Errorf("it was expanded to %d bytes, and Get reports %d", size, recorded)
	}
	after, err := l.fileSystem(ctx, v)
	switch {
	case err != nil:
		return err
	case after.shared:
		return errShared
	case after.total < before.total+usable(was):
		return fmt.Errorf("it was expanded from %d to %d bytes, and the published file system had %d bytes and has %d",
			was, size, before.total, after.total)
	}
	return nil
}

// expand expands a volume that is published at "a".
func (l *lab) expand(ctx context.Context, v *volume, size int64) error {
	onNode, err := l.expandDevice(ctx, v, size)
	if err != nil || !onNode {
		return err
	}
	return l.expandNode(ctx, v, size)
}

// expandUnused expands a volume while it is not published.
func (l *lab) expandUnused(ctx context.Context, v *volume, size int64) error {
	if err := l.unpublished(ctx, v); err != nil {
		return err
	}
	onNode, err := l.expandDevice(ctx, v, size)
	if err != nil {
		return err
	}
	if err := l.ready(ctx, v); err != nil {
		return err
	}
	if err := l.publish(ctx, v, "a"); err != nil || !onNode {
		return err
	}
	return l.expandNode(ctx, v, size)
}

func (l *lab) expandNode(ctx context.Context, v *volume, size int64) error {
	return l.do(ctx, "ExpandNode", func(ctx context.Context, _ grpc.ClientConnInterface) error {
		_, err := l.client().ExpandNode(ctx, v.driver, storage.ExpandNodeRequest{
			Volume: v.Volume, CapacityMin: size, VolumePath: v.target("a"), StagingPath: v.staging,
		})
		return err
	})
}

// expandDevice is the part of an expansion that the controller makes. onNode is true if the node's must follow.
func (l *lab) expandDevice(ctx context.Context, v *volume, size int64) (onNode bool, err error) {
	if !l.fp.Controller.Expand {
		return true, nil
	}
	var res storage.ExpandResponse
	err = l.do(ctx, "Expand", func(ctx context.Context, _ grpc.ClientConnInterface) (err error) {
		res, err = l.client().Expand(ctx, v.driver, storage.ExpandRequest{Volume: v.Volume, CapacityMin: size})
		return err
	})
	if err == nil && res.Capacity != 0 && res.Capacity < size {
		err = fmt.Errorf("an Expand succeeded, and the capacity is %d bytes; %d were requested", res.Capacity, size)
	}
	return res.NodeExpansionRequired, err
}

func checkSame(ctx context.Context, l *lab) error {
	v, err := l.another()
	if err != nil {
		return err
	}
	if err := l.made(ctx, v); err != nil {
		return err
	}
	if err := l.publish(ctx, v, "a"); err != nil {
		return err
	}
	content := fresh()
	if err := v.write("a", content); err != nil {
		return err
	}
	id, capacity := v.ExternalID, v.capacity
	if err := l.do(ctx, "Create again", v.create); err != nil {
		return err
	}
	if v.ExternalID != id {
		return fmt.Errorf("the same request made the volume %q and then %q", id, v.ExternalID)
	}
	if err := v.has("a", content, "after Create was repeated"); err != nil {
		return err
	}
	if capacity == 0 {
		return skip("the same request returns the same volume; a driver that reports no capacity can be asked for no other")
	}
	other := v.request
	other.CapacityMin = 2 * capacity
	err = insist(ctx, func(ctx context.Context) error {
		_, err := l.client().Create(ctx, v.driver, other)
		return err
	})
	if code := status.Code(err); code != codes.AlreadyExists && code != codes.OutOfRange {
		return fmt.Errorf("to create the volume with %d bytes again, with at least %d: got %w, want AlreadyExists or OutOfRange",
			capacity, other.CapacityMin, orSuccess(err))
	}
	return v.has("a", content, "after a Create that was refused")
}

func checkDeleted(ctx context.Context, l *lab) error {
	if err := l.creates(); err != nil {
		return err
	}
	v, _, err := l.filled(ctx)
	if err != nil {
		return err
	}
	if err := l.unpublished(ctx, v); err != nil {
		return err
	}
	if err := l.do(ctx, "Delete", v.remove); err != nil {
		return err
	}
	if err := l.do(ctx, "ValidateVolume", v.validate); status.Code(err) != codes.NotFound {
		return fmt.Errorf("after Delete: got %w, want NotFound", orSuccess(err))
	}
	if l.fp.Controller.ListVolumes {
		ids, err := pages(ctx, 0, l.listVolumes)
		if err != nil {
			return err
		}
		if slices.Contains(ids, v.ExternalID) {
			return errors.New("after Delete the volume is still listed")
		}
	}
	if err := l.made(ctx, v); err != nil {
		return fmt.Errorf("after Delete: %w", err)
	}
	if err := l.publish(ctx, v, "a"); err != nil {
		return fmt.Errorf("after Delete and Create: %w", err)
	}
	return v.lacks("a", "after Delete, a new volume of that name has the data of the old one")
}

func checkStats(ctx context.Context, l *lab) error {
	if !l.fp.Node.VolumeStats {
		return skip("needs a driver that reports volume stats")
	}
	v, _, err := l.filled(ctx)
	if err != nil {
		return err
	}
	before, err := l.usage(ctx, v)
	if err != nil {
		return err
	}
	const size = 8 << 20
	more := filepath.Join(v.target("a"), file+"-more")
	if err := writeFile(more, make([]byte, size)); err != nil {
		return fmt.Errorf("write to the published volume: %w", err)
	}
	defer os.Remove(more)
	after, err := l.usage(ctx, v)
	if err != nil {
		return err
	}
	fs, err := l.fileSystem(ctx, v)
	switch {
	case err != nil:
		return err
	case after.Used == before.Used, !fs.shared && after.Used < before.Used+size/2: // others use a shared one too
		return fmt.Errorf("%d bytes were used before %d were written, and %d after that", before.Used, size, after.Used)
	}
	return nil
}

// usage returns the usage in bytes, according to VolumeStats.
func (l *lab) usage(ctx context.Context, v *volume) (storage.Usage, error) {
	var stats storage.Stats
	err := l.do(ctx, "VolumeStats", func(ctx context.Context, _ grpc.ClientConnInterface) (err error) {
		stats, err = l.client().VolumeStats(ctx, v.driver,
			storage.StatsRequest{Volume: v.Volume, VolumePath: v.target("a"), StagingPath: v.staging})
		return err
	})
	if err != nil {
		return storage.Usage{}, err
	}
	for _, u := range stats.Usage {
		if u.Unit == storage.Bytes {
			return u, nil
		}
	}
	return storage.Usage{}, errors.New("VolumeStats: no usage in bytes")
}
