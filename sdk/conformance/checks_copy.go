package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

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
		ID:    "clone.content",
		kind:  storage.Kind,
		Says:  "A clone has its source's data, and from then on neither sees what is written to the other.",
		Fix:   "Copy the data. A link or a shared device is no clone.",
		after: append([]string{"data.kept"}, stored...),
		run:   checkClone,
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

// copied returns a volume that is made from a snapshot or another volume, published at "a".
func (l *lab) copied(ctx context.Context, snapshot, clone string) (*volume, error) {
	v, err := l.another()
	if err != nil {
		return nil, err
	}
	v.request.SnapshotID, v.request.CloneID = snapshot, clone
	if err := l.made(ctx, v); err != nil {
		return nil, err
	}
	return v, l.publish(ctx, v, "a")
}

func checkSnapshot(ctx context.Context, r *run, c *checking) error {
	l, err := r.lab(ctx, c)
	if err != nil {
		return err
	}
	if !l.fp.Controller.CreateDeleteSnapshot {
		return skip("needs a driver that makes snapshots")
	}
	if err := l.creates(); err != nil {
		return err
	}
	v, old, err := l.filled(ctx)
	if err != nil {
		return err
	}
	snap, err := l.snapshot(ctx, v, v.Name+"-snapshot")
	if err != nil {
		return err
	}
	later := fresh()
	if err := v.write("a", later); err != nil {
		return err
	}
	w, err := l.copied(ctx, snap.ID, "")
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
	if w, err = l.copied(ctx, snap.ID, ""); err != nil {
		return fmt.Errorf("a second volume from the snapshot: %w", err)
	}
	return w.has("a", old, "in a second volume from the snapshot")
}

func checkClone(ctx context.Context, r *run, c *checking) error {
	l, err := r.lab(ctx, c)
	if err != nil {
		return err
	}
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
	w, err := l.copied(ctx, "", v.ExternalID)
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
