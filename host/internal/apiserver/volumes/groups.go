package volumes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/storage"
)

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
	if err == nil {
		err = h.Controllers.DeleteGroupSnapshot(ctx, req.GetPluginId(), named)
	}
	if err == nil {
		h.snapshotEvent("group-deleted", req.GetPluginId(), named.ID, "")
	}
	return &hostv1.DeleteGroupSnapshotResponse{}, err
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
