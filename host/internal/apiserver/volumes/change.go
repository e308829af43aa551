package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// ExpandVolume grows a volume at its driver, then wherever it is mounted. It can be repeated with the same size if it
// was interrupted.
func (h *Handler) ExpandVolume(ctx context.Context,
	req *hostv1.ExpandVolumeRequest,
) (*hostv1.ExpandVolumeResponse, error) {
	ref, unlock, err := h.lockRef(ctx, req)
	if err != nil {
		return nil, err
	}
	defer unlock()
	v, _, err := h.readVolume(ctx, ref)
	if err != nil {
		return nil, err
	}
	if err := h.expand(ctx, v, req.GetCapacityMin(), req.GetCapacityMax()); err != nil {
		return nil, err
	}
	shown, err := h.shownNow(ctx, v.VolumeRef)
	return &hostv1.ExpandVolumeResponse{Volume: shown}, err
}

// expand grows a volume, whose lock is held. If the driver does that only while nobody uses the volume, nobody can
// claim it until the driver has answered.
func (h *Handler) expand(ctx context.Context, v claim.Volume, minBytes, maxBytes int64) error {
	if err := checkGrowth(v, minBytes, maxBytes); err != nil {
		return err
	}
	a := h.newAct(ctx, v, claim.Mark{Act: claim.Expanding, CapacityMin: minBytes, CapacityMax: maxBytes})
	grown, err := h.Controllers.Expand(ctx, v, minBytes, maxBytes, a.begin)
	if err != nil {
		return a.failed(ctx, err)
	}
	v.Capacity = cmp.Or(grown.Capacity, max(minBytes, v.Capacity))
	v.CapacityMin, v.CapacityMax = minBytes, maxBytes
	v.Grown = v.Grown || grown.NodeExpansionRequired
	if _, err := h.put(ctx, v, a.mark.Index); err != nil {
		return fmt.Errorf("volume %q has grown to %d bytes, but the ledger could not be updated: %w; expand it again to finish",
			v.VolumeRef, v.Capacity, err)
	}
	if grown.NodeExpansionRequired {
		// Workloads that start from now on see that it has grown.
		_, claims, err := h.readVolume(ctx, v.VolumeRef)
		if err != nil {
			return err
		}
		if err := h.expandMounted(ctx, v, claims); err != nil {
			return err
		}
	}
	h.volumeEvent("expanded", v)
	return nil
}

// expandMounted grows what is mounted of a volume. If a node cannot be reached the others are still grown.
func (h *Handler) expandMounted(ctx context.Context, v claim.Volume, claims []claim.Claim) error {
	var failed []error
	_, err := h.Workloads.Expand(v, func(at mounts.Place) error {
		return h.Controllers.ExpandNode(ctx, v, at, v.CapacityMin, v.CapacityMax)
	})
	failed = append(failed, err)
	for _, node := range h.elsewhere(claims) {
		if _, err := h.Nodes.ExpandVolume(ctx, node, v, v.CapacityMin, v.CapacityMax); err != nil {
			failed = append(failed, fmt.Errorf("on node %q: %w", node, err))
		}
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf(
			"volume %q has grown to %d bytes at its driver, but not on all nodes that have mounted it: %w; expand it again to finish", v.VolumeRef, v.Capacity, err)
	}
	return nil
}

// elsewhere returns the other nodes that may have mounted the claimed volume.
func (h *Handler) elsewhere(claims []claim.Claim) (nodes []string) {
	if h.Nodes == nil {
		return nil
	}
	for _, c := range claims {
		if c.Node != h.Name && (c.State == claim.Taken || c.State == claim.Unpublishing) {
			nodes = append(nodes, c.Node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// checkGrowth returns an error for invalid sizes and those below the volume's size.
func checkGrowth(v claim.Volume, minBytes, maxBytes int64) error {
	object := fmt.Sprintf("volume %q", v.VolumeRef)
	switch {
	case minBytes < 0 || maxBytes < 0:
		return call.Invalid(object, "capacity_min, capacity_max", "must not be negative")
	case minBytes == 0 && maxBytes == 0:
		return call.Invalid(object, "capacity_min", "is missing: to what size should it grow?")
	case maxBytes > 0 && minBytes > maxBytes:
		return call.Invalid(object, "capacity_min", fmt.Sprintf("(%d bytes) is above capacity_max (%d bytes)", minBytes, maxBytes))
	case maxBytes > 0 && maxBytes < v.Capacity:
		return call.Invalid(object, "capacity_max",
			fmt.Sprintf("(%d bytes) is below its capacity (%d bytes): volumes do not shrink", maxBytes, v.Capacity))
	case maxBytes == 0 && minBytes < v.Capacity:
		return call.Invalid(object, "capacity_min",
			fmt.Sprintf("(%d bytes) is below its capacity (%d bytes): volumes do not shrink", minBytes, v.Capacity))
	}
	return nil
}

// DetachVolume releases every claim of a volume on a node.
func (h *Handler) DetachVolume(ctx context.Context,
	req *hostv1.DetachVolumeRequest,
) (*hostv1.DetachVolumeResponse, error) {
	ref, err := volumeRef(req.GetNamespace(), req.GetId())
	if err != nil {
		return nil, err
	}
	if err := claim.CheckID(req.GetNode()); err != nil {
		return nil, call.Invalid(fmt.Sprintf("detach volume %q", ref), "node", err.Error())
	}
	done, err := h.Watcher.Detach(ctx, ref, req.GetNode(), req.GetForce(), call.CallerOf(ctx).Who())
	if err != nil {
		return nil, err
	}
	resp := &hostv1.DetachVolumeResponse{}
	for _, d := range done {
		resp.Claims = append(resp.Claims,
			&hostv1.DetachedClaim{Claim: call.ShownClaim(d.Claim), Released: d.Released, Message: d.Message})
	}
	return resp, nil
}

// checkParameters checks what a driver gets before the ledger has seen it, if it ever does.
func checkParameters(object string, parameters map[string]string) error {
	if err := claim.CheckKeys(parameters); err != nil {
		return call.Invalid(object, "parameters", err.Error())
	}
	return nil
}

// ModifyVolume changes mutable parameters of a volume at its driver, which decides which there are, and records them.
// It can be repeated if it was interrupted.
func (h *Handler) ModifyVolume(ctx context.Context,
	req *hostv1.ModifyVolumeRequest,
) (*hostv1.ModifyVolumeResponse, error) {
	ref, unlock, err := h.lockRef(ctx, req)
	if err != nil {
		return nil, err
	}
	defer unlock()
	v, _, err := h.readVolume(ctx, ref)
	if err != nil {
		return nil, err
	}
	parameters := req.GetParameters()
	if len(parameters) == 0 {
		return nil, call.Invalid(fmt.Sprintf("volume %q", v.VolumeRef), "parameters", "are missing: what should change?")
	}
	if err := checkParameters(fmt.Sprintf("volume %q", v.VolumeRef), parameters); err != nil {
		return nil, err
	}
	if err := h.Controllers.Modify(ctx, v, parameters, req.GetSecrets()); err != nil {
		return nil, err
	}
	if v.MutableParameters == nil {
		v.MutableParameters = map[string]string{}
	}
	maps.Copy(v.MutableParameters, parameters)
	if _, err := h.put(ctx, v, 0); err != nil {
		return nil, fmt.Errorf("volume %q is modified at driver %q, but the ledger could not be updated: %w; modify it again "+
			"to finish", v.VolumeRef, v.PluginID, err)
	}
	h.volumeEvent("modified", v)
	shown, err := h.shownNow(ctx, v.VolumeRef)
	return &hostv1.ModifyVolumeResponse{Volume: shown}, err
}
