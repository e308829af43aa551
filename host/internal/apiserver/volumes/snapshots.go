package volumes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/storage"
)

// CreateSnapshot takes a snapshot, or returns the volume's existing one of that name. Without a name it gets one that
// contains the time.
func (h *Handler) CreateSnapshot(ctx context.Context,
	req *hostv1.CreateSnapshotRequest,
) (*hostv1.CreateSnapshotResponse, error) {
	ref, err := volumeRef(req.GetNamespace(), req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	if name == "" {
		name = time.Now().UTC().Format("20060102-150405.000")
	}
	if err := claim.CheckID(name); err != nil {
		return nil, call.Invalid(fmt.Sprintf("snapshot of volume %q", ref), "name", err.Error())
	}
	if err := checkParameters(fmt.Sprintf("snapshot of volume %q", ref), req.GetParameters()); err != nil {
		return nil, err
	}
	v, _, err := h.readVolume(ctx, ref)
	if err != nil {
		return nil, err
	}
	named := claim.SnapshotRef{Namespace: v.Namespace, Name: name}
	if known, found, err := h.findSnapshot(ctx, named); err != nil {
		return nil, err
	} else if found {
		if err := known.CheckSource(v.PluginID, v.ExternalID); err != nil {
			return nil, fmt.Errorf("%w; give this one another name, or delete that one: pannier volume snapshot delete %s %s",
				err, known.PluginID, named.Name)
		}
	}
	taken, err := h.Controllers.CreateSnapshot(ctx, v, name, req.GetParameters(), req.GetSecrets())
	if err != nil {
		return nil, err
	}
	put, err := h.record(ctx, v, named, taken.ID)
	if err != nil {
		return nil, err
	}
	shown := shownSnapshot(v.PluginID, taken)
	shown.Volume, shown.Name = v.String(), named.String()
	if put.Changed {
		h.snapshotEvent("created", v.PluginID, taken.ID, v.String())
	}
	return &hostv1.CreateSnapshotResponse{Snapshot: shown, Warnings: taken.Warnings}, nil
}

// record writes to the ledger whose snapshot this is, and its name.
func (h *Handler) record(ctx context.Context, v claim.Volume, named claim.SnapshotRef, id string) (
	put command.PutSnapshotResult, err error,
) {
	put, err = cluster.Apply(ctx, h.Ledger, &command.PutSnapshot{Snapshot: claim.Snapshot{
		SnapshotRef: named, PluginID: v.PluginID, ID: id, Volume: v.ID, ExternalVolumeID: v.ExternalID,
		Topologies: v.Topologies,
	}})
	if err != nil {
		err = fmt.Errorf("driver %q has taken the snapshot %s, but its name %q was not recorded: %w; take it again to "+
			"finish: it is not taken twice", v.PluginID, id, named, err)
	}
	return put, err
}

// findSnapshot reads the snapshot of a name, which may not exist.
func (h *Handler) findSnapshot(ctx context.Context, ref claim.SnapshotRef) (known claim.Snapshot, found bool,
	err error,
) {
	known, err = call.Latest(ctx, h.Ledger, func(tx *state.ReadTx) (claim.Snapshot, error) { return tx.Snapshot(ref) })
	found, err = call.Found(err, claim.ErrSnapshotNotFound)
	return known, found, err
}

// snapshotID returns the driver's id of a snapshot, which is given by it or by the name that it has in a namespace.
func (h *Handler) snapshotID(ctx context.Context, namespace, driver, given string) (id string, named bool, err error) {
	known, found, err := h.findSnapshot(ctx, claim.SnapshotRef{Namespace: namespace, Name: given})
	if err != nil || !found || known.PluginID != driver {
		return given, false, err
	}
	return known.ID, true, nil
}

// knownSnapshots returns the names of a driver's snapshot; none: the ledger does not have it.
func (h *Handler) knownSnapshots(ctx context.Context, driver, id string) ([]claim.Snapshot, error) {
	return call.Latest(ctx, h.Ledger, func(tx *state.ReadTx) ([]claim.Snapshot, error) {
		return tx.SnapshotsByID(driver, id)
	})
}

// snapshotPlaces returns where the volume of a snapshot was accessible from; nil: the ledger does not have it.
func (h *Handler) snapshotPlaces(ctx context.Context, driver, id string) (places []claim.Topology, err error) {
	known, err := h.knownSnapshots(ctx, driver, id)
	if err == nil && len(known) > 0 {
		places = known[0].Topologies
	}
	return places, err
}

// snapshotSecrets returns the secrets for a call about a driver's snapshot, or about all for an empty id: those that
// the caller gave, else those that are stored with the snapshot's volume. If that is not known, or gone, those of the
// driver's volumes, if all that have some have the same.
func (h *Handler) snapshotSecrets(ctx context.Context, driver, id string, given map[string]string) (
	map[string]string, error,
) {
	if len(given) > 0 {
		return given, nil
	}
	volumes, err := call.Latest(ctx, h.Ledger, func(tx *state.ReadTx) ([]claim.Volume, error) {
		names, err := tx.SnapshotsByID(driver, id)
		if err == nil && len(names) > 0 {
			v, err := tx.Volume(claim.VolumeRef{Namespace: names[0].Namespace, ID: names[0].Volume})
			if err == nil && v.ExternalID == names[0].ExternalVolumeID {
				return []claim.Volume{v}, nil
			}
		}
		all, _, err := tx.Volumes(state.VolumeQuery{Driver: driver})
		return all, err
	})
	for _, v := range volumes {
		open, failed := h.Sealer.Unseal(v.SealedSecrets, secrets.ForVolume(v.Namespace, v.ID))
		switch {
		case failed != nil:
			return nil, failed
		case len(given) > 0 && len(open) > 0 && !maps.Equal(given, open):
			return nil, nil
		case len(open) > 0:
			given = open
		}
	}
	return given, err
}

// DeleteSnapshot deletes a snapshot at its driver. An unknown one is an error, if the driver lists its snapshots.
func (h *Handler) DeleteSnapshot(ctx context.Context,
	req *hostv1.DeleteSnapshotRequest,
) (*hostv1.DeleteSnapshotResponse, error) {
	if err := claim.CheckID(req.GetPluginId()); err != nil {
		return nil, call.Invalid("delete snapshot", "plugin_id", err.Error())
	}
	if req.GetSnapshotId() == "" {
		return nil, call.Invalid("delete snapshot", "snapshot_id", "is missing")
	}
	driver := req.GetPluginId()
	id, named, err := h.snapshotID(ctx, call.NamespaceOr(req.GetNamespace()), driver, req.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	places, err := h.snapshotPlaces(ctx, driver, id)
	if err != nil {
		return nil, err
	}
	given, err := h.snapshotSecrets(ctx, driver, id, req.GetSecrets())
	if err != nil {
		return nil, err
	}
	unknown := !named && h.unknownSnapshot(ctx, driver, id, given)
	if !unknown {
		if err := h.Controllers.DeleteSnapshot(ctx, driver, id, given, places); err != nil {
			return nil, err
		}
	}
	removed, err := cluster.Apply(ctx, h.Ledger, &command.DeleteSnapshot{PluginID: driver, ID: id})
	switch {
	case err != nil:
		return nil, fmt.Errorf("snapshot %s is deleted at driver %q, but its name is still recorded: %w; delete it again to "+
			"finish", id, driver, err)
	case unknown && len(removed) == 0: // no earlier attempt of this call has deleted it either
		return nil, fmt.Errorf("snapshot %q %w: driver %q has none with this id, and the namespace %q none with this name",
			id, claim.ErrSnapshotNotFound, driver, call.NamespaceOr(req.GetNamespace()))
	}
	h.snapshotEvent("deleted", driver, id, "")
	return &hostv1.DeleteSnapshotResponse{}, nil
}

// unknownSnapshot reports whether a driver lists its snapshots, and not this one. Drivers answer the deletion of an
// unknown snapshot as if they had deleted it (CSI spec, DeleteSnapshot).
func (h *Handler) unknownSnapshot(ctx context.Context, driver, id string, secrets map[string]string) bool {
	list, err := h.Controllers.ListSnapshots(ctx, driver, storage.ListSnapshotsRequest{
		Page: storage.Page{Max: 1}, SnapshotID: id, Secrets: secrets,
	})
	return err == nil && !slices.ContainsFunc(list.Snapshots, func(have storage.Snapshot) bool { return have.ID == id })
}

// ListSnapshots lists a page of a driver's snapshots, with the registered volumes that they were taken of.
func (h *Handler) ListSnapshots(ctx context.Context,
	req *hostv1.ListSnapshotsRequest,
) (*hostv1.ListSnapshotsResponse, error) {
	page, err := driverPage("list snapshots", req)
	if err != nil {
		return nil, err
	}
	given, err := h.snapshotSecrets(ctx, req.GetPluginId(), "", req.GetSecrets())
	if err != nil {
		return nil, err
	}
	list, err := h.Controllers.ListSnapshots(ctx, req.GetPluginId(),
		storage.ListSnapshotsRequest{Page: page, Secrets: given})
	if err != nil {
		return nil, err
	}
	shown, err := h.shownSnapshots(ctx, req.GetPluginId(), list.Snapshots)
	return &hostv1.ListSnapshotsResponse{Snapshots: shown, NextToken: list.Next}, err
}

// shownSnapshots returns a driver's snapshots with their names, and those of the registered volumes that they were
// taken of.
func (h *Handler) shownSnapshots(ctx context.Context, driver string, snapshots []storage.Snapshot) (
	shown []*hostv1.Snapshot, err error,
) {
	err = h.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		for _, snapshot := range snapshots {
			of, err := tx.VolumesByExternalID(driver, snapshot.VolumeExternalID)
			if err != nil {
				return err
			}
			one := shownSnapshot(driver, snapshot)
			if len(of) > 0 {
				one.Volume = of[0].String()
			}
			names, err := tx.SnapshotsByID(driver, snapshot.ID)
			if err != nil {
				return err
			}
			if len(names) > 0 {
				one.Name = names[0].String()
			}
			shown = append(shown, one)
		}
		return nil
	})
	return shown, err
}

func shownSnapshot(driver string, snapshot storage.Snapshot) *hostv1.Snapshot {
	return &hostv1.Snapshot{
		SnapshotId: snapshot.ID, PluginId: driver, ExternalVolumeId: snapshot.VolumeExternalID,
		Size: snapshot.Size, CreatedAt: call.Time(snapshot.CreatedAt), Ready: snapshot.Ready,
		GroupId: snapshot.GroupID,
	}
}

// maxGroup bounds the volumes of a group snapshot: all of them are held still together.
const maxGroup = 64

// CreateGroupSnapshot takes snapshots of several volumes as of one moment, or returns the existing ones of that name.
// Without a name the group gets one that contains the time.
func (h *Handler) CreateGroupSnapshot(ctx context.Context,
	req *hostv1.CreateGroupSnapshotRequest,
) (*hostv1.CreateGroupSnapshotResponse, error) {
	name := req.GetName()
	if name == "" {
		name = time.Now().UTC().Format("20060102-150405.000")
	}
	object := fmt.Sprintf("group snapshot %q", name)
	if err := claim.CheckID(name); err != nil {
		return nil, call.Invalid(object, "name", err.Error())
	}
	if err := checkParameters(object, req.GetParameters()); err != nil {
		return nil, err
	}
	ids := slices.Compact(slices.Sorted(slices.Values(req.GetVolumeIds())))
	if len(ids) == 0 || len(ids) > maxGroup {
		return nil, call.Invalid(object, "volume_ids", fmt.Sprintf("are %d volumes: give 1 to %d", len(ids), maxGroup))
	}
	var volumes []claim.Volume
	for _, id := range ids {
		ref, err := volumeRef(req.GetNamespace(), id)
		if err != nil {
			return nil, err
		}
		v, _, err := h.readVolume(ctx, ref)
		if err != nil {
			return nil, err
		}
		if len(volumes) > 0 && v.PluginID != volumes[0].PluginID {
			return nil, call.Invalid(object, "volume_ids", fmt.Sprintf("%q is of driver %q and %q of driver %q: a driver takes "+
				"snapshots of its own volumes only", volumes[0].ID, volumes[0].PluginID, v.ID, v.PluginID))
		}
		volumes = append(volumes, v)
	}
	taken, err := h.Controllers.CreateGroupSnapshot(ctx, volumes, name, req.GetParameters(), req.GetSecrets())
	if err != nil {
		return nil, err
	}
	for _, one := range taken.Snapshots {
		at := slices.IndexFunc(volumes, func(v claim.Volume) bool { return v.ExternalID == one.VolumeExternalID })
		if at < 0 {
			continue // it stays unknown, and so nobody's
		}
		named := claim.SnapshotRef{Namespace: volumes[at].Namespace, Name: controllers.MemberName(name, volumes[at].ID)}
		if _, err := h.record(ctx, volumes[at], named, one.ID); err != nil {
			return nil, err
		}
	}
	h.snapshotEvent("group-created", volumes[0].PluginID, taken.ID, joined(volumes))
	shown, err := h.shownGroup(ctx, volumes[0].PluginID, taken)
	return &hostv1.CreateGroupSnapshotResponse{Group: shown}, err
}

// GetGroupSnapshot reads a group with its snapshots from its driver.
func (h *Handler) GetGroupSnapshot(ctx context.Context,
	req *hostv1.GetGroupSnapshotRequest,
) (*hostv1.GetGroupSnapshotResponse, error) {
	named, err := groupRequest(req)
	if err != nil {
		return nil, err
	}
	got, err := h.Controllers.GetGroupSnapshot(ctx, req.GetPluginId(), named)
	if err != nil {
		return nil, err
	}
	shown, err := h.shownGroup(ctx, req.GetPluginId(), got)
	return &hostv1.GetGroupSnapshotResponse{Group: shown}, err
}

// DeleteGroupSnapshot deletes a group with its snapshots at its driver. It may be repeated.
func (h *Handler) DeleteGroupSnapshot(ctx context.Context,
	req *hostv1.DeleteGroupSnapshotRequest,
) (*hostv1.DeleteGroupSnapshotResponse, error) {
	named, err := groupRequest(req)
	if err != nil {
		return nil, err
	}
	if len(named.SnapshotIDs) > 0 {
		if named.Secrets, err = h.snapshotSecrets(ctx, req.GetPluginId(), named.SnapshotIDs[0], named.Secrets); err != nil {
			return nil, err
		}
	}
	deleted, err := h.Controllers.DeleteGroupSnapshot(ctx, req.GetPluginId(), named)
	if err != nil {
		return nil, err
	}
	for _, id := range deleted {
		if _, err := cluster.Apply(ctx, h.Ledger, &command.DeleteSnapshot{PluginID: req.GetPluginId(), ID: id}); err != nil {
			return nil, fmt.Errorf("group snapshot %q is deleted at driver %q, but the name of snapshot %s is still recorded: %w; "+
				"delete it with its snapshots' ids to finish", named.ID, req.GetPluginId(), id, err)
		}
	}
	h.snapshotEvent("group-deleted", req.GetPluginId(), named.ID, "")
	return &hostv1.DeleteGroupSnapshotResponse{}, nil
}

// joined lists the volumes' names.
func joined(volumes []claim.Volume) string {
	var names []string
	for _, v := range volumes {
		names = append(names, v.String())
	}
	return strings.Join(names, ", ")
}

func groupRequest(req interface {
	GetPluginId() string
	GetGroupId() string
	GetSnapshotIds() []string
	GetSecrets() map[string]string
},
) (storage.GroupSnapshotRequest, error) {
	named := storage.GroupSnapshotRequest{
		ID: req.GetGroupId(), SnapshotIDs: req.GetSnapshotIds(), Secrets: req.GetSecrets(),
	}
	if err := claim.CheckID(req.GetPluginId()); err != nil {
		return named, call.Invalid("group snapshot", "plugin_id", err.Error())
	}
	if named.ID == "" {
		return named, call.Invalid("group snapshot", "group_id", "is missing")
	}
	return named, nil
}

func (h *Handler) shownGroup(ctx context.Context, driver string, g storage.GroupSnapshot) (*hostv1.GroupSnapshot,
	error,
) {
	shown, err := h.shownSnapshots(ctx, driver, g.Snapshots)
	return &hostv1.GroupSnapshot{
		GroupId: g.ID, PluginId: driver, CreatedAt: call.Time(g.CreatedAt), Ready: g.Ready, Snapshots: shown,
	}, err
}
