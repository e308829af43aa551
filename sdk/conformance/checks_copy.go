package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
)

var copyChecks = []*Check{
	{
		ID:    "snapshot.content",
		kind:  storage.Kind,
		Says:  "A volume made from a snapshot has the data as of the snapshot, whatever was written to the source since.",
		Fix:   "Copy the data, or freeze it, before CreateSnapshot returns, and fill the new volume from that.",
		after: append([]string{"data.kept"}, stored...),
		run:   checkSnapshot,
	},
	{
		ID:    "snapshot.same",
		kind:  storage.Kind,
		Says:  "CreateSnapshot with the name of an existing snapshot returns that one, or AlreadyExists if it is of another volume.",
		Fix:   "Store with a snapshot its name and its source, and compare both.",
		after: append([]string{"snapshot.content"}, stored...),
		run:   checkSnapshotSame,
	},
	{
		ID:    "snapshot.deleted",
		kind:  storage.Kind,
		Says:  "After DeleteSnapshot the snapshot is gone, its source and the volumes made from it are not, and the call can be repeated.",
		Fix:   "Delete the snapshot before you report success. A volume that was made from it needs data of its own.",
		after: append([]string{"snapshot.content"}, stored...),
		run:   checkSnapshotDeleted,
	},
	{
		ID:    "clone.content",
		kind:  storage.Kind,
		Says:  "A clone has its source's data, and from then on neither sees what is written to the other.",
		Fix:   "Copy the data. A link or a shared device is no clone.",
		after: append([]string{"data.kept"}, stored...),
		run:   inLab(checkClone),
	},
}

// snapshot makes a snapshot that is ready for use.
func (l *lab) snapshot(ctx context.Context, v *volume, name string) (storage.Snapshot, error) {
	var snap storage.Snapshot
	for deadline := time.Now().Add(callTime); !snap.Ready; time.Sleep(50 * time.Millisecond) {
		err := insist(ctx, func(ctx context.Context) (err error) {
			snap, err = l.client().CreateSnapshot(ctx, v.driver, storage.CreateSnapshotRequest{Name: name, Volume: v.Volume})
			return err
		})
		switch {
		case err != nil:
			return snap, fmt.Errorf("CreateSnapshot: %w", err)
		case snap.ID == "":
			return snap, errors.New("CreateSnapshot: it returns no id")
		case len(l.snapshots) == 0 || l.snapshots[len(l.snapshots)-1] != snap.ID:
			l.snapshots = append(l.snapshots, snap.ID)
		case time.Now().After(deadline):
			return snap, fmt.Errorf("CreateSnapshot: the snapshot is not ready for use after %v", callTime)
		}
	}
	return snap, nil
}

// copied returns a volume that is made from one of a source's snapshots, or is its clone, published at "a".
func (l *lab) copied(ctx context.Context, source *volume, snapshot string) (*volume, error) {
	v, err := l.another()
	if err != nil {
		return nil, err
	}
	if v.request.SnapshotID = snapshot; snapshot == "" {
		v.request.CloneID = source.ExternalID
	}
	v.tree = source.tree
	if err := l.made(ctx, v); err != nil {
		return nil, err
	}
	return v, l.publish(ctx, v, "a")
}

func checkSnapshot(ctx context.Context, r *run, c *checking) error {
	l, v, old, snap, err := r.snapshotted(ctx, c)
	if err != nil {
		return err
	}
	later := fresh()
	if err := v.write("a", later); err != nil {
		return err
	}
	w, err := l.copied(ctx, v, snap.ID)
	if err != nil {
		return fmt.Errorf("a volume from the snapshot: %w", err)
	}
	if err := w.has("a", old, "in a volume from the snapshot"); err != nil {
		return err
	}
	if err := w.write("a", fresh()); err != nil {
		return err
	}
	if err := v.has("a", later, "in the source, after a write to a volume from its snapshot"); err != nil {
		return err
	}
	if w, err = l.copied(ctx, v, snap.ID); err != nil {
		return fmt.Errorf("a second volume from the snapshot: %w", err)
	}
	return w.has("a", old, "in a second volume from the snapshot")
}

// snapshotted returns a lab with a new volume and a snapshot of it.
func (r *run) snapshotted(ctx context.Context, c *checking) (*lab, *volume, []byte, storage.Snapshot, error) {
	var none storage.Snapshot
	l, err := r.lab(ctx, c)
	if err != nil {
		return nil, nil, nil, none, err
	}
	if !l.fp.Controller.CreateDeleteSnapshot {
		return nil, nil, nil, none, skip("needs a driver that makes snapshots")
	}
	if err := l.creates(); err != nil {
		return nil, nil, nil, none, err
	}
	v, content, err := l.filled(ctx)
	if err != nil {
		return nil, nil, nil, none, err
	}
	snap, err := l.snapshot(ctx, v, v.Name+"-snapshot")
	return l, v, content, snap, err
}

func checkSnapshotSame(ctx context.Context, r *run, c *checking) error {
	l, v, _, snap, err := r.snapshotted(ctx, c)
	if err != nil {
		return err
	}
	again, err := l.snapshot(ctx, v, v.Name+"-snapshot")
	if err != nil {
		return err
	}
	if again.ID != snap.ID {
		return fmt.Errorf("the same request made the snapshot %q and then %q", snap.ID, again.ID)
	}
	other, err := l.another()
	if err != nil {
		return err
	}
	if err := l.do(ctx, "Create", other.create); err != nil {
		return err
	}
	if _, err := l.snapshot(ctx, other, v.Name+"-snapshot"); status.Code(err) != codes.AlreadyExists {
		return fmt.Errorf("to make a snapshot of another volume with that name: got %w, want AlreadyExists", orSuccess(err))
	}
	return nil
}

func checkSnapshotDeleted(ctx context.Context, r *run, c *checking) error {
	l, v, content, snap, err := r.snapshotted(ctx, c)
	if err != nil {
		return err
	}
	w, err := l.copied(ctx, v, snap.ID)
	if err != nil {
		return fmt.Errorf("a volume from the snapshot: %w", err)
	}
	for _, what := range []string{"DeleteSnapshot", "DeleteSnapshot again"} {
		err := l.deleteSnapshot(ctx, snap.ID)
		if status.Code(err) == codes.FailedPrecondition {
			return skip("needs a driver that deletes a snapshot from which volumes were made: " + status.Convert(err).Message())
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if l.fp.Controller.ListSnapshots {
		ids, err := pages(ctx, 0, l.listSnapshots)
		if err != nil {
			return err
		}
		if slices.Contains(ids, snap.ID) {
			return errors.New("after DeleteSnapshot the snapshot is still listed")
		}
	}
	if _, err := l.copied(ctx, v, snap.ID); status.Code(err) != codes.NotFound {
		return fmt.Errorf("to make a volume from a deleted snapshot: got %w, want NotFound", orSuccess(err))
	}
	if err := w.has("a", content, "in a volume from the snapshot, after its end"); err != nil {
		return err
	}
	return v.has("a", content, "in the source, after the end of its snapshot")
}

func checkClone(ctx context.Context, l *lab) error {
	if !l.fp.Controller.Clone {
		return skip("needs a driver that clones volumes")
	}
	if err := l.creates(); err != nil {
		return err
	}
	v, content, err := l.filled(ctx)
	if err != nil {
		return err
	}
	w, err := l.copied(ctx, v, "")
	if err != nil {
		return fmt.Errorf("a clone: %w", err)
	}
	if err := w.has("a", content, "in the clone"); err != nil {
		return err
	}
	own := fresh()
	if err := w.write("a", own); err != nil {
		return err
	}
	if err := v.has("a", content, "in the source, after a write to the clone"); err != nil {
		return err
	}
	if err := v.write("a", fresh()); err != nil {
		return err
	}
	return w.has("a", own, "in the clone, after a write to the source")
}
