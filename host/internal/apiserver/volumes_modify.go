package apiserver

import (
	"context"
	"fmt"
	"maps"

	"github.com/pannier/pannier/host/internal/apiserver/call"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// ModifyVolume changes mutable parameters of a volume at its driver, which decides which there are, and records them.
// It can be repeated if it was interrupted.
func (s volumeService) ModifyVolume(ctx context.Context,
	req *hostv1.ModifyVolumeRequest,
) (*hostv1.ModifyVolumeResponse, error) {
	v, _, unlock, err := s.lockVolume(ctx, req)
	if err != nil {
		return nil, err
	}
	defer unlock()
	parameters := req.GetParameters()
	if len(parameters) == 0 {
		return nil, call.Invalid(fmt.Sprintf("volume %q", v.VolumeRef), "parameters", "are missing: what should change?")
	}
	if err := s.cfg.Controllers.Modify(ctx, v, parameters, req.GetSecrets()); err != nil {
		return nil, err
	}
	if v.MutableParameters == nil {
		v.MutableParameters = map[string]string{}
	}
	maps.Copy(v.MutableParameters, parameters)
	if _, err := s.put(ctx, v); err != nil {
		return nil, fmt.Errorf("volume %q is modified at driver %q, but the ledger could not be updated: %w; modify it again "+
			"to finish", v.VolumeRef, v.PluginID, err)
	}
	s.volumeEvent("modified", v)
	shown, err := s.shownNow(ctx, v.VolumeRef)
	return &hostv1.ModifyVolumeResponse{Volume: shown}, err
}
