package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pannier/pannier/internal/atomicfile"
)

// Group is the record of snapshots that were taken of several volumes at one moment.
type Group struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
	Snapshots []string  `json:"snapshots"` // their ids
	// Complete is false while its snapshots are being added or deleted.
	Complete bool `json:"complete"`
}

// GroupID returns the id of the group with this name.
func GroupID(name string) string { return newID(groupPrefix, name) }

// MemberID returns the id of a volume's snapshot in a group. No snapshot of its own has that name: names have no
// control characters.
func MemberID(groupID, volumeID string) string { return SnapshotID(groupID + "\x00" + volumeID) }

func (s *Store) groupPath(id string) string { return filepath.Join(s.dir, "groups", id) }

// Group returns one group, or ErrNotFound.
func (s *Store) Group(id string) (Group, error) {
	g, err := s.group(id)
	if err == nil && !g.Complete {
		err = ErrNotFound
	}
	if err != nil {
		return Group{}, fmt.Errorf("group %q: %w", id, err)
	}
	return g, nil
}

// group is Group for incomplete ones too.
func (s *Store) group(id string) (g Group, err error) {
	if !validID(groupPrefix, id) {
		return g, ErrNotFound
	}
	data, err := os.ReadFile(s.groupPath(id))
	if errors.Is(err, os.ErrNotExist) {
		return g, ErrNotFound
	}
	if err == nil {
		err = json.Unmarshal(data, &g)
	}
	return g, err
}

// CreateGroup adds a group with all its snapshots, or nothing. fill writes their images, in the order of snaps.
func (s *Store) CreateGroup(g Group, snaps []Snapshot, fill func(images []*os.File) error) error {
	dirs, err := s.buildMembers(snaps, fill)
	if err == nil {
		err = s.addGroup(g, snaps, dirs)
	}
	for _, dir := range dirs { // those that are in place are not there any more
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		return fmt.Errorf("create group %q: %w", g.ID, err)
	}
	return nil
}

// buildMembers builds the snapshots below tmp, and returns their directories.
func (s *Store) buildMembers(snaps []Snapshot, fill func(images []*os.File) error) (dirs []string, err error) {
	var images []*os.File
	defer func() {
		for _, image := range images {
			err = errors.Join(err, image.Close())
		}
	}()
	for _, snap := range snaps {
		dir, err := os.MkdirTemp(s.snapshots.tmp, snap.ID+"-")
		if err != nil {
			return dirs, err
		}
		dirs = append(dirs, dir)
		image, err := os.OpenFile(filepath.Join(dir, snap.ID+".img"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return dirs, err
		}
		images = append(images, image)
	}
	if err := fill(images); err != nil {
		return dirs, err
	}
	for n, snap := range snaps {
		if err := images[n].Sync(); err != nil {
			return dirs, err
		}
		if err := writeRecord(filepath.Join(dirs[n], recordName), snap); err != nil { // syncs the directory too
			return dirs, err
		}
	}
	return dirs, nil
}

// addGroup moves a group's snapshots into place.
func (s *Store) addGroup(g Group, snaps []Snapshot, dirs []string) error {
	g.Complete = false
	if err := writeRecord(s.groupPath(g.ID), g); err != nil {
		return err
	}
	for n, snap := range snaps {
		if err := os.Rename(dirs[n], s.snapshots.path(snap.ID)); err != nil {
			return errors.Join(err, s.DeleteGroup(g.ID))
		}
	}
	err := atomicfile.SyncDir(s.snapshots.dir)
	if err == nil {
		g.Complete = true
		err = writeRecord(s.groupPath(g.ID), g)
	}
	if err != nil {
		return errors.Join(err, s.DeleteGroup(g.ID))
	}
	return nil
}

// DeleteGroup removes a group with its snapshots. It succeeds if there is none.
func (s *Store) DeleteGroup(id string) error {
	g, err := s.group(id)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err == nil && g.Complete {
		g.Complete = false
		err = writeRecord(s.groupPath(id), g)
	}
	for _, snap := range g.Snapshots {
		if err == nil {
			err = s.snapshots.delete(snap)
		}
	}
	if err == nil {
		if err = os.Remove(s.groupPath(id)); err == nil {
			err = atomicfile.SyncDir(filepath.Dir(s.groupPath(id)))
		}
	}
	if err != nil {
		return fmt.Errorf("delete group %q: %w", id, err)
	}
	return nil
}

// sweepGroups removes the groups that an earlier driver left incomplete.
func (s *Store) sweepGroups() error {
	entries, err := os.ReadDir(filepath.Join(s.dir, "groups"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		g, err := s.group(e.Name())
		if errors.Is(err, ErrNotFound) {
			err = os.Remove(s.groupPath(e.Name())) // an unfinished write
		} else if err == nil && !g.Complete {
			err = s.DeleteGroup(g.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
