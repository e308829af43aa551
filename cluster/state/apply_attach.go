package state

import (
	"errors"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

func (tx volumeWrites) IntendAttach(c *command.IntendAttach) (zero claim.Claim, _ error) {
	if err := errors.Join(c.Volume.Validate(), c.Workload.Validate()); err != nil {
		return zero, err
	}
	claimed, err := tx.Claim(c.Volume, c.Workload)
	if err != nil {
		return zero, err
	}
	if claimed.Index != c.Index || claimed.State != claim.Taken {
		return zero, fmt.Errorf("workload %q on volume %q: %w: it is being released, or was taken anew", c.Workload, c.Volume,
			claim.ErrClaimNotFound)
	}
	v, err := tx.definition(c.Volume)
	if err != nil {
		return zero, err
	}
	there, err := tx.claimsThere(c.Volume, claimed.Node, 0)
	if err != nil {
		return zero, err
	}
	for _, one := range there {
		if one.AttachedBy == v.PluginID {
			continue
		}
		one.AttachedBy = v.PluginID
		if err := tx.putClaim(&one); err != nil {
			return zero, err
		}
	}
	claimed.AttachedBy = v.PluginID
	return claimed, nil
}

// attachedBy returns the driver whose controller may have attached a volume to a node; empty: none. All claims of the
// volume there say the same.
func (tx *ReadTx) attachedBy(volume claim.VolumeRef, node string) (driver string, err error) {
	there, err := tx.claimsThere(volume, node, 1)
	if err != nil || len(there) == 0 {
		return "", err
	}
	return there[0].AttachedBy, nil
}

// claimsThere reads the claims on a volume from one node; limit 0: all.
func (tx *ReadTx) claimsThere(volume claim.VolumeRef, node string, limit int) ([]claim.Claim, error) {
	return tx.claimsAt(span{base: claimsByNode + node + "/", sub: volumePart(volume) + "/", limit: limit})
}
