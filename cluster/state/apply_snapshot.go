package state

import (
	"errors"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

func (tx volumeWrites) PutSnapshot(c *command.PutSnapshot) (zero command.PutSnapshotResult, _ error) {
	next := c.Snapshot
	if err := next.Validate(); err != nil {
		return zero, err
	}
	var before []string
	switch old, err := tx.Snapshot(next.SnapshotRef); {
	case errors.Is(err, claim.ErrSnapshotNotFound):
	case err != nil:
		return zero, err
	default:
		if err := old.CheckSource(next.PluginID, next.ExternalVolumeID); err != nil {
			return zero, err
		}
		if old.ID == next.ID {
			return command.PutSnapshotResult{Snapshot: old}, nil
		}
		before = snapshotIndexKeys(&old)
	}
	next.CreatedAt = c.At
	if err := write(tx.writeTx, snapshotKey(next.SnapshotRef), &next, before, snapshotIndexKeys(&next)); err != nil {
		return zero, err
	}
	return command.PutSnapshotResult{Snapshot: next, Changed: true}, nil
}

func (tx volumeWrites) DeleteSnapshot(c *command.DeleteSnapshot) ([]claim.SnapshotRef, error) {
	found, err := tx.SnapshotsByID(c.PluginID, c.ID)
	if err != nil {
		return nil, err
	}
	var result []claim.SnapshotRef
	for i := range found[:min(len(found), command.MaxItems)] {
		s := &found[i]
		err = write(tx.writeTx, snapshotKey(s.SnapshotRef), (*claim.Snapshot)(nil), snapshotIndexKeys(s), nil)
		if err != nil {
			return nil, err
		}
		result = append(result, s.SnapshotRef)
	}
	return result, nil
}
