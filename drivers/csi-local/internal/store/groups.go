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
	g.Complete = false
	err := atomicfile.WriteJSON(s.groupPath(g.ID), g)
	if err == nil {
		err = s.createMembers(snaps, nil, fill)
	}
	if err == nil {
		g.Complete = true
		err = atomicfile.WriteJSON(s.groupPath(g.ID), g)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("create group %q: %w", g.ID, err), s.DeleteGroup(g.ID))
	}
	return nil
}

// createMembers creates the snapshots, each one's image being open until fill has written all of them.
func (s *Store) createMembers(snaps []Snapshot, images []*os.File, fill func(images []*os.File) error) error {
	if len(images) == len(snaps) {
		return fill(images)
	}
	next := snaps[len(images)]
	return s.snapshots.create(next.ID, next, func(image *os.File) error {
		return s.createMembers(snaps, append(images, image), fill)
	})
}

// DeleteGroup removes a group with its snapshots. It succeeds if there is none.
func (s *Store) DeleteGroup(id string) error {
	g, err := s.group(id)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err == nil && g.Complete {
		g.Complete = false
		err = atomicfile.WriteJSON(s.groupPath(id), g)
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
