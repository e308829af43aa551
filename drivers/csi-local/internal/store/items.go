package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	volumePrefix   = "vol-"
	snapshotPrefix = "snap-"
	groupPrefix    = "group-"
	idDigits       = 32
)

// Source is the source of a volume's initial content. The zero value means an empty volume; at most one field is
// set.
type Source struct {
	VolumeID   string `json:"volume_id,omitempty"`
	SnapshotID string `json:"snapshot_id,omitempty"`
}

// Volume is the record of a volume. Capacity and Missing are not stored, but read from the image.
type Volume struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Parameters map[string]string `json:"parameters,omitempty"`
	Mutable    map[string]string `json:"mutable,omitempty"` // parameters that may change
	Source     Source            `json:"source,omitzero"`
	CreatedAt  time.Time         `json:"created_at"`

	// Ephemeral is the id by which a client knows a volume that exists while it is published; empty for one of
	// CreateVolume.
	Ephemeral string `json:"ephemeral,omitempty"`

	// FSType is the file system that the image has, or will get when it is first staged as one; empty for a volume
	// that has only been a block device.
	FSType string `json:"fs_type,omitempty"`
	// Formatting is set while mkfs runs on an image that was blank before: after a crash, what it left there is no
	// data.
	Formatting string `json:"formatting,omitempty"`

	Capacity int64 `json:"-"` // bytes: the size of the image
	Missing  bool  `json:"-"` // the image is gone
}

// Snapshot is the record of a snapshot, a copy of a volume's image.
type Snapshot struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	VolumeID   string    `json:"volume_id"`
	CreatedAt  time.Time `json:"created_at"`
	FSType     string    `json:"fs_type,omitempty"`
	Formatting string    `json:"formatting,omitempty"`
	GroupID    string    `json:"group_id,omitempty"` // of the group that it was taken with; empty: none

	Size int64 `json:"-"` // bytes: the size of the image, and of the smallest volume made from it
}

// VolumeID returns the id of the volume with this name. It is derived from the name, so that CreateVolume can be
// repeated without an index.
func VolumeID(name string) string { return newID(volumePrefix, name) }

// SnapshotID returns the id of the snapshot with this name.
func SnapshotID(name string) string { return newID(snapshotPrefix, name) }

// EphemeralID returns the id of the volume that a client has published as an ephemeral one. No name has a control
// character, so no other volume has this id.
func EphemeralID(client string) string { return newID(volumePrefix, "ephemeral\x00"+client) }

// IsVolumeID reports whether id has the form of VolumeID's result.
func IsVolumeID(id string) bool { return validID(volumePrefix, id) }

// IsSnapshotID reports whether id has the form of SnapshotID's result.
func IsSnapshotID(id string) bool { return validID(snapshotPrefix, id) }

func newID(prefix, name string) string {
	sum := sha256.Sum256([]byte(name))
	return prefix + hex.EncodeToString(sum[:])[:idDigits]
}

// Image returns the path of a volume's data, for an id that IsVolumeID accepts.
func (s *Store) Image(id string) string { return s.volumes.image(id) }

// SnapshotImage returns the path of a snapshot's data, for an id that IsSnapshotID accepts.
func (s *Store) SnapshotImage(id string) string { return s.snapshots.image(id) }

// Volume returns one volume, or ErrNotFound.
func (s *Store) Volume(id string) (Volume, error) {
	v, err := s.volumes.get(id)
	if err != nil {
		return Volume{}, fmt.Errorf("volume %q: %w", id, err)
	}
	info, err := os.Stat(s.Image(id))
	switch {
	case errors.Is(err, os.ErrNotExist):
		v.Missing = true
	case err != nil:
		return Volume{}, fmt.Errorf("volume %q: %w", id, err)
	default:
		v.Capacity = info.Size()
	}
	return v, nil
}

// VolumeIDs lists the ids of all volumes in ascending order.
func (s *Store) VolumeIDs() ([]string, error) { return s.volumes.ids() }

// CreateVolume adds a volume. fill writes its image, which is then resized to v.Capacity bytes.
func (s *Store) CreateVolume(v Volume, fill func(image *os.File) error) error {
	v.Parameters = maps.Clone(v.Parameters)
	return s.volumes.failed("create", v.ID, s.volumes.create(v.ID, v, func(image *os.File) error {
		if err := fill(image); err != nil {
			return err
		}
		return image.Truncate(v.Capacity)
	}))
}

// UpdateVolume replaces a volume's record.
func (s *Store) UpdateVolume(v Volume) error {
	return s.volumes.failed("update", v.ID, s.volumes.update(v.ID, v))
}

// Grow enlarges a volume's image to capacity bytes. It never shrinks one.
func (s *Store) Grow(id string, capacity int64) error {
	f, err := os.OpenFile(s.Image(id), os.O_RDWR, 0)
	if err != nil {
		return s.volumes.failed("grow", id, err)
	}
	info, err := f.Stat()
	if err == nil && capacity > info.Size() {
		if err = f.Truncate(capacity); err == nil {
			err = f.Sync()
		}
	}
	return s.volumes.failed("grow", id, errors.Join(err, f.Close()))
}

// ReplaceImage replaces the image of an unused volume by one that fill writes. The volume keeps the old one until
// the new one is on disk.
func (s *Store) ReplaceImage(id string, fill func(image *os.File) error) error {
	return s.volumes.failed("replace the image of", id, s.volumes.replaceImage(id, fill))
}

// DeleteVolume removes a volume and its data. It succeeds if there is none.
func (s *Store) DeleteVolume(id string) error {
	return s.volumes.failed("delete", id, s.volumes.delete(id))
}

// Snapshot returns one snapshot, or ErrNotFound.
func (s *Store) Snapshot(id string) (Snapshot, error) {
	snap, err := s.snapshots.get(id)
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot %q: %w", id, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(s.SnapshotImage(id), &st); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot %q: image: %w", id, err)
	}
	snap.Size = st.Size
	return snap, nil
}

// SnapshotIDs lists the ids of all snapshots in ascending order.
func (s *Store) SnapshotIDs() ([]string, error) { return s.snapshots.ids() }

// CreateSnapshot adds a snapshot whose image is written by fill.
func (s *Store) CreateSnapshot(snap Snapshot, fill func(image *os.File) error) error {
	return s.snapshots.failed("create", snap.ID, s.snapshots.create(snap.ID, snap, fill))
}

// DeleteSnapshot removes a snapshot. It succeeds if there is none.
func (s *Store) DeleteSnapshot(id string) error {
	return s.snapshots.failed("delete", id, s.snapshots.delete(id))
}
