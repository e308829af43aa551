package apiserver

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/secrets"
	"github.com/pannier/pannier/sdk/storage"
)

// mayUse refuses a definition whose data another namespace has: a volume, a clone's source or
// a snapshot is named by the driver's own id, which knows no namespaces. The caller
// needs of that namespace what it would need by the volume's name there.
func (s *Server) mayUse(ctx context.Context, v claim.Volume) error {
	c := callerOf(ctx)
	if c.IsManagement() {
		return nil
	}
	needs := map[string]acl.Capability{}
	if v.CloneID != "" {
		needs[v.CloneID] = acl.CSIReadVolume
	}
	if v.SnapshotID != "" {
		source, err := s.snapshotSource(ctx, v)
		if err != nil {
			return err
		}
		// Where the driver does not tell, whoever may read all that it has may go on.
		if source == "" {
			return c.may(acl.Plugin, acl.Read)
		}
		needs[source] = acl.CSIReadVolume
	}
	if v.ExternalID != "" {
		needs[v.ExternalID] = acl.CSIWriteVolume
	}
	if len(needs) == 0 {
		return nil
	}
	return s.cfg.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		registered, _, err := tx.Volumes(state.VolumeQuery{Driver: v.PluginID})
		if err != nil {
			return err
		}
		for _, other := range registered {
			if capability, used := needs[other.ExternalID]; used && other.Namespace != v.Namespace {
				if err := c.mayIn(other.Namespace, capability); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// snapshotSource is the external id of the volume that a snapshot is of; empty: the driver
// does not tell.
func (s *Server) snapshotSource(ctx context.Context, v claim.Volume) (string, error) {
	open, err := s.cfg.Sealer.Unseal(v.SealedSecrets, secrets.ForVolume(v.Namespace, v.ID))
	if err != nil {
		return "", err
	}
	list, err := s.cfg.Controllers.ListSnapshots(ctx, v.PluginID, storage.ListSnapshotsRequest{
		Page: storage.Page{Max: 1}, SnapshotID: v.SnapshotID, Secrets: open,
	})
	if status.Code(err) == codes.Unimplemented {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look whose snapshot %q is: %w", v.SnapshotID, err)
	}
	for _, snapshot := range list.Snapshots {
		if snapshot.ID == v.SnapshotID {
			return snapshot.VolumeExternalID, nil
		}
	}
	return "", nil
}
