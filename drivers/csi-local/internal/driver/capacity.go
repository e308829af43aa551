package driver

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// defaultCapacity is what a volume gets when nothing is asked for, in bytes.
	defaultCapacity = 1 << 30
	// granule is what capacities are multiples of, in bytes.
	granule = 4096
)

// disk is the room on the host's disk, in bytes.
type disk struct{ total, available int64 }

// chooseCapacity picks a size in the range: at least what is required and at
// least minimum (of the file system, or of the source); fallback, or what of it
// is within the limit, where nothing is required. The error is a status.
func chooseCapacity(r *csi.CapacityRange, minimum, fallback int64) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case required < 0 || limit < 0:
		return 0, status.Error(codes.OutOfRange, "capacity_range has a negative size")
	case limit > 0 && required > limit:
		return 0, status.Errorf(codes.OutOfRange, "capacity_range requires %d bytes and limits to %d", required, limit)
	case required > 1<<62:
		return 0, status.Errorf(codes.OutOfRange, "capacity_range requires %d bytes, more than any disk has", required)
	}
	size := required
	if size == 0 {
		size = fallback
		if limit > 0 {
			size = min(size, limit/granule*granule)
		}
	}
	size = (max(size, minimum) + granule - 1) / granule * granule
	if limit > 0 && size > limit {
		return 0, status.Errorf(codes.OutOfRange,
			"capacity_range limits to %d bytes, the volume needs at least %d: raise limit_bytes", limit, size)
	}
	return size, nil
}

// fits tells whether extra bytes, on the way to a volume of size bytes, can be
// promised. Volumes are sparse and their later writes are not reserved.
func (k disk) fits(size, extra int64) error {
	if size > k.total {
		return status.Errorf(codes.OutOfRange, "%d bytes are more than the host's disk has (%d)", size, k.total)
	}
	if extra > k.available {
		return status.Errorf(codes.ResourceExhausted,
			"%d more bytes are needed and %d are free on the host's disk: free some space or ask for less", extra, k.available)
	}
	return nil
}

func (d *Driver) disk() (disk, error) {
	total, available, err := d.store.Space()
	if err != nil {
		return disk{}, failed(err)
	}
	return disk{total, available}, nil
}
