package command

import "github.com/pannier/pannier/cluster/claim"

// PutSnapshot records the name of a snapshot that its driver has taken. A name that is known for the same volume gets
// the new snapshot, since a driver gives each snapshot of a name one id; for another volume it is
// claim.ErrSnapshotExists.
type PutSnapshot struct {
	Returns[PutSnapshotResult]
	Snapshot claim.Snapshot `json:"snapshot"`
}

// PutSnapshotResult answers PutSnapshot. Changed is false if the snapshot had the name before.
type PutSnapshotResult struct {
	Snapshot claim.Snapshot
	Changed  bool
}

// DeleteSnapshot removes the names of a driver's snapshot.
type DeleteSnapshot struct {
	Returns[[]claim.SnapshotRef]
	PluginID string `json:"plugin_id"`
	ID       string `json:"id"`
}
