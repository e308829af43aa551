package controllers

import (
	"context"
	"fmt"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
)

// roomWait bounds the question how much room a driver has before it is asked to create a volume.
const roomWait = 5 * time.Second

// short returns an error if the driver reports less room than the volume needs in each of the topologies where it may
// be, and nil if there is enough or the driver does not say: then it decides.
func (c *Controllers) short(ctx context.Context, s storage.Client, d drivers.Driver, v claim.Volume,
	where storage.TopologyRequirement,
) error {
	if ctl := d.Fingerprint.Controller; v.CapacityMin == 0 || ctl == nil || !ctl.GetCapacity {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, roomWait)
	defer cancel()
	places := where.Requisite
	if len(places) == 0 {
		places = []storage.Topology{nil}
	}
	var most int64
	for _, place := range places {
		room, err := s.Capacity(ctx, d.Ref(), storage.CapacityRequest{
			Capabilities: capabilities(v), Parameters: v.Parameters, Topology: place,
		})
		if err != nil {
			return nil
		}
		most = max(most, largest(room))
	}
	if v.CapacityMin <= most {
		return nil
	}
	return fmt.Errorf("it has room for %d bytes and capacity_min is %d: free some there, or ask for less", most,
		v.CapacityMin)
}

// largest returns the size of the largest volume that there is room for: with thin provisioning a volume may be larger
// than what is available (CSI spec, GetCapacityResponse).
func largest(room storage.Capacity) int64 {
	if room.MaximumVolume > 0 {
		return room.MaximumVolume
	}
	return room.Available
}

// CapacityHere asks the driver of this node how much room it has for volumes that this node can use. ok is false if it
// does not say.
func (c *Controllers) CapacityHere(ctx context.Context, driverID string) (room storage.Capacity, ok bool) {
	err := c.cfg.Calls.CallController(ctx, driverID, 0,
		func(ctx context.Context, s storage.Client, d drivers.Driver) (err error) {
			fp := d.Fingerprint
			if fp.Controller == nil || !fp.Controller.GetCapacity {
				return nil
			}
			var req storage.CapacityRequest
			if fp.Node != nil {
				req.Topology = fp.Node.AccessibleTopology
			}
			room, err = s.Capacity(ctx, d.Ref(), req)
			ok = err == nil
			return err
		})
	return room, ok && err == nil
}
