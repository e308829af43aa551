package claim

import (
	"fmt"
	"time"
)

// SnapshotRef names a snapshot: its name is unique in its namespace, whichever volume it is of.
type SnapshotRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String is the name, with the namespace in front of it unless that is "default".
func (r SnapshotRef) String() string { return qualified(r.Namespace, r.Name) }

// Snapshot is the name of a driver's snapshot. All else of it is kept by the driver.
type Snapshot struct {
	SnapshotRef
	PluginID string `json:"plugin_id"` // the CSI driver's id
	ID       string `json:"id"`        // the driver's id of the snapshot
	// Volume is the id, in the same namespace, of the volume that it was taken of, which may be deregistered since.
	Volume           string    `json:"volume"`
	ExternalVolumeID string    `json:"external_volume_id"`
	CreatedAt        time.Time `json:"created_at,omitzero"`
	// Topologies are where the volume was accessible from.
	Topologies []Topology `json:"topologies,omitempty"`
}

// Validate checks a snapshot before it is recorded. The error is a *FieldError.
func (s *Snapshot) Validate() error {
	c := checker{object: func() string { return fmt.Sprintf("snapshot %q", s.SnapshotRef) }}
	c.id("name", s.Name)
	c.id("namespace", s.Namespace)
	c.id("plugin_id", s.PluginID)
	if err := CheckVolumeID(s.Volume); err != nil {
		c.fail("volume", err.Error())
	}
	if s.ID == "" || s.ExternalVolumeID == "" {
		c.fail("id, external_volume_id", "are missing")
	}
	return c.err
}

// CheckSource refuses the name of a snapshot for another volume. The error is ErrSnapshotExists and names the volume
// whose snapshot has it.
func (s *Snapshot) CheckSource(pluginID, externalVolumeID string) error {
	if s.PluginID == pluginID && s.ExternalVolumeID == externalVolumeID {
		return nil
	}
	return fmt.Errorf("snapshot %q %w: of volume %q (driver %q, external id %q), taken at %s", s.SnapshotRef,
		ErrSnapshotExists, VolumeRef{s.Namespace, s.Volume}, s.PluginID, s.ExternalVolumeID,
		s.CreatedAt.UTC().Format(time.RFC3339))
}
