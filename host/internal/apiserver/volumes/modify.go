package volumes

import (
	"context"
	"fmt"
	"maps"

	"github.com/pannier/pannier/host/internal/apiserver/call"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// ModifyVolume changes mutable parameters of a volume at its driver, which decides which there are, and records them.
// It can be repeated if it was interrupted.
func (h *Handler) ModifyVolume(ctx context.Context,
	req *hostv1.ModifyVolumeRequest,
) (*hostv1.ModifyVolumeResponse, error) {
	v, _, unlock, err := h.lockVolume(ctx, req)
	if err != nil {
		return nil, err
	}
	defer unlock()
	parameters := req.GetParameters()
	if len(parameters) == 0 {
		return nil, call.Invalid(fmt.Sprintf("volume %q", v.VolumeRef), "parameters", "are missing: what should change?")
	}
	if err := h.Controllers.Modify(ctx, v, parameters, req.GetSecrets()); err != nil {
		return nil, err
	}
	if v.MutableParameters == nil {
		v.MutableParameters = map[string]string{}
	}
	maps.Copy(v.MutableParameters, parameters)
	if _, err := h.put(ctx, v); err != nil {
		return nil, fmt.Errorf("volume %q is modified at driver %q, but the ledger could not be updated: %w; modify it again "+
			"to finish", v.VolumeRef, v.PluginID, err)
	}
	h.volumeEvent("modified", v)
	shown, err := h.shownNow(ctx, v.VolumeRef)
	return &hostv1.ModifyVolumeResponse{Volume: shown}, err
}
