// Package store keeps volumes and snapshots in one data directory, and is the
// only package that knows its layout:
//
//	lock                        flock: one driver per data directory
//	volumes/<id>/record.json    what is known about a volume besides its data
//	volumes/<id>/<id>.img       its data; the file's size is its capacity
//	snapshots/<id>/...          the same for a snapshot
//	frozen/<id>                 the volume's file system was about to be frozen
//	tmp/...                     everything that is not finished
//
// What must stay true: an id exists exactly when its folder does. A folder is
// built below tmp, synced and renamed into place whole; it is deleted by
// renaming it back below tmp first. So a crash leaves either all of it or
// something below tmp, which Open sweeps. Nothing is remembered in memory.
//
// It imports sparse, the standard library and golang.org/x/sys/unix only.
package store
