package volumes

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/secrets"
	"github.com/pannier/pannier/sdk/storage"
)

// mayUse checks that a definition uses no other namespace's data: volumes, clone sources and snapshots are named by
// the driver's ids, which have no namespaces. If another namespace has registered such an id, the caller needs there
// the permission that it would need for that volume itself. The error names that namespace only to a caller that may
// list its volumes.
func (h *Handler) mayUse(ctx context.Context, v claim.Volume) error {
	c := call.CallerOf(ctx)
	if c.IsManagement() {
		return nil
	}
	needs := map[string]acl.Capability{}
	if v.CloneID != "" {
		needs[v.CloneID] = acl.CSIReadVolume
	}
	if v.SnapshotID != "" {
		source, err := h.snapshotSource(ctx, v)
		if err != nil {
			return err
		}
		// If the driver does not say whose snapshot it is, reading everything at the driver is required.
		if source == "" {
			return c.May(acl.Plugin, acl.Read)
		}
		needs[source] = acl.CSIReadVolume
	}
	if v.ExternalID != "" {
		needs[v.ExternalID] = acl.CSIWriteVolume
	}
	if len(needs) == 0 {
		return nil
	}
	return h.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		for _, id := range slices.Sorted(maps.Keys(needs)) {
			registered, err := tx.VolumesByExternalID(v.PluginID, id)
			if err != nil {
				return err
			}
			for _, other := range registered {
				if other.Namespace == v.Namespace {
					continue
				}
				err := c.MayIn(other.Namespace, needs[id])
				if err != nil && !c.AllowNamespace(other.Namespace, acl.CSIListVolume) {
					err = c.Lacks(fmt.Sprintf("the capability %q on the namespace that has registered what external_id, clone_id "+
						"or snapshot_id names at driver %q", needs[id], v.PluginID))
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// snapshotSource returns the external id of the volume that a snapshot was taken of, or "" if the driver does not
// say.
func (h *Handler) snapshotSource(ctx context.Context, v claim.Volume) (string, error) {
	open, err := h.Sealer.Unseal(v.SealedSecrets, secrets.ForVolume(v.Namespace, v.ID))
	if err != nil {
		return "", err
	}
	id, _, err := h.snapshotID(ctx, v.Namespace, v.PluginID, v.SnapshotID)
	if err != nil {
		return "", err
	}
	list, err := h.Controllers.ListSnapshots(ctx, v.PluginID, storage.ListSnapshotsRequest{
		Page: storage.Page{Max: 1}, SnapshotID: id, Secrets: open,
	})
	if status.Code(err) == codes.Unimplemented {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("find the volume of snapshot %q: %w", v.SnapshotID, err)
	}
	for _, snapshot := range list.Snapshots {
		if snapshot.ID == id {
			return snapshot.VolumeExternalID, nil
		}
	}
	return "", nil
}
