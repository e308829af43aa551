package volumes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// maxPerPage bounds a page of ListVolumes.
const maxPerPage = 1000

// volumeStates are the states that ListVolumes can be asked for.
var volumeStates = []string{"free", "taken", "releasing"}

// ListVolumes lists volumes by namespace, driver, node or state, with their claims. Only those that are in the answer
// are read: a page of a long list costs little more than the names of all.
func (h *Handler) ListVolumes(ctx context.Context,
	m *hostv1.ListVolumesRequest,
) (*hostv1.ListVolumesResponse, error) {
	namespace := call.AllOr(m.GetNamespace())
	for field, id := range map[string]string{"namespace": namespace, "plugin_id": m.GetPluginId(), "node": m.GetNode()} {
		if id == "" {
			continue
		}
		if err := claim.CheckID(id); err != nil {
			return nil, call.Invalid("list volumes", field, err.Error())
		}
	}
	switch {
	case m.GetState() != "" && !slices.Contains(volumeStates, m.GetState()):
		return nil, call.Invalid("list volumes", "state", fmt.Sprintf("%q is not one of %s", call.Shortened(m.GetState()),
			strings.Join(volumeStates, ", ")))
	case m.GetPerPage() < 0 || m.GetPerPage() > maxPerPage:
		return nil, call.Invalid("list volumes", "per_page", fmt.Sprintf("must be 0 to %d", maxPerPage))
	case m.GetPage() < 0:
		return nil, call.Invalid("list volumes", "page", "counts from 1")
	}
	resp := &hostv1.ListVolumesResponse{}
	var err error
	topics := append([]state.Topic{state.TopicVolumes, state.TopicDrivers}, call.AllClaims...)
	resp.Meta, err = call.Read(ctx, h.Ledger, m, topics, func(tx *state.ReadTx) error {
		refs, err := tx.VolumeRefs(namespace, m.GetPluginId())
		if err == nil && len(refs) == 0 && m.GetPluginId() != "" {
			err = h.checkDriver(ctx, tx, m.GetPluginId())
		}
		if err == nil {
			refs, err = selected(tx, m, refs)
		}
		if err != nil {
			return err
		}
		c := call.CallerOf(ctx)
		refs = slices.DeleteFunc(refs, func(r claim.VolumeRef) bool {
			return !c.AllowNamespace(r.Namespace, acl.CSIListVolume)
		})
		resp.Volumes, resp.Total = nil, int64(len(refs))
		drivers := map[string]claim.Driver{}
		for _, ref := range pageOf(refs, int(m.GetPerPage()), int(m.GetPage())) {
			v, claims, err := volumeAndClaims(tx, ref)
			if err != nil {
				return err
			}
			d, known := drivers[v.PluginID]
			if !known {
				if d, err = driverOf(tx, v); err != nil {
					return err
				}
				drivers[v.PluginID] = d
			}
			resp.Volumes = append(resp.Volumes, showDriver(h.shownVolume(v, claims), d))
		}
		return nil
	})
	return resp, err
}

// selected keeps the volumes that a list is asked for.
func selected(tx *state.ReadTx, m *hostv1.ListVolumesRequest, refs []claim.VolumeRef) ([]claim.VolumeRef, error) {
	if search := strings.ToLower(m.GetSearch()); search != "" {
		refs = slices.DeleteFunc(refs, func(r claim.VolumeRef) bool {
			return !strings.Contains(strings.ToLower(r.ID), search)
		})
	}
	if m.GetState() != "" {
		claimed, err := tx.VolumesClaimed(m.GetState() == "releasing")
		if err != nil {
			return nil, err
		}
		refs = slices.DeleteFunc(refs, func(r claim.VolumeRef) bool { return claimed[r] == (m.GetState() == "free") })
	}
	if m.GetNode() != "" {
		claims, err := tx.ClaimsOn(m.GetNode())
		if err != nil {
			return nil, err
		}
		there := map[claim.VolumeRef]bool{}
		for _, c := range claims {
			there[c.Volume] = true
		}
		refs = slices.DeleteFunc(refs, func(r claim.VolumeRef) bool { return !there[r] })
	}
	return refs, nil
}

// pageOf returns one page of a list; a size of 0: all of it.
func pageOf(refs []claim.VolumeRef, size, page int) []claim.VolumeRef {
	if size == 0 {
		return refs
	}
	from := min((max(page, 1)-1)*size, len(refs))
	return refs[from:min(from+size, len(refs))]
}
