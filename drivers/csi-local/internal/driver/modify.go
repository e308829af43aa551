package driver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/loop"
	"github.com/pannier/pannier/drivers/csi-local/internal/store"
)

const (
	// readAheadParameter is the only mutable parameter: how much the kernel reads ahead of a volume's readers, in KiB.
	readAheadParameter = "readAheadKiB"
	// defaultReadAhead is the kernel's own, in KiB.
	defaultReadAhead = 128
	// maxReadAhead keeps one reader from filling the memory with what nobody reads, in KiB.
	maxReadAhead = 64 << 10
)

// ControllerModifyVolume changes the read-ahead, also of a volume that is in use.
func (d controller) ControllerModifyVolume(_ context.Context,
	req *csi.ControllerModifyVolumeRequest,
) (*csi.ControllerModifyVolumeResponse, error) {
	id := req.GetVolumeId()
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	end, err := d.flight.begin("ControllerModifyVolume", id)
	if err != nil {
		return nil, err
	}
	defer end()
	v, err := d.volume(id)
	if err != nil {
		return nil, err
	}
	if err := checkMutable(req.GetMutableParameters()); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "mutable_parameters: %v", err)
	}
	if v.Mutable == nil {
		v.Mutable = map[string]string{}
	}
	maps.Copy(v.Mutable, req.GetMutableParameters())
	if err := d.store.UpdateVolume(v); err != nil {
		return nil, failed(err)
	}
	devices, err := loop.Find(d.store.Image(id))
	if err != nil {
		return nil, failed(err)
	}
	for _, dev := range devices {
		if err := dev.SetReadAhead(readAhead(v)); err != nil {
			return nil, failed(err)
		}
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}

// checkMutable checks mutable parameters.
func checkMutable(parameters map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if key != readAheadParameter {
			return fmt.Errorf("%q (%q) is unknown: the driver takes %q only", key,
				parameters[key], readAheadParameter)
		}
		if n, err := strconv.ParseUint(parameters[key], 10, 31); err != nil || n > maxReadAhead {
			return fmt.Errorf("%q is %q: use a whole number of KiB from 0 to %d", key, parameters[key],
				maxReadAhead)
		}
	}
	return nil
}

// readAhead returns a volume's read-ahead in bytes.
func readAhead(v store.Volume) int {
	kib, err := strconv.Atoi(v.Mutable[readAheadParameter])
	if err != nil {
		kib = defaultReadAhead
	}
	return kib << 10
}
