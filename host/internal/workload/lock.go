package workload

import (
	"context"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/internal/kmutex"
)

// volumeLocks lets one workload at a time change what this node does with a
// volume.
type volumeLocks struct{ kmutex.Locks[claim.VolumeRef] }

func (l *volumeLocks) lock(ctx context.Context, ref claim.VolumeRef) (unlock func(), err error) {
	if unlock, err = l.Lock(ctx, ref); err != nil {
		return nil, fmt.Errorf("wait for another use of volume %q: %w", ref, err)
	}
	return unlock, nil
}
