package controllers

import (
	"context"
	"errors"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
)

// Of volumes that are detached together, none is waited for longer than togetherWithin, and for their node no longer
// than togetherTimeout.
const (
	togetherWithin  = 500 * time.Millisecond
	togetherTimeout = 2 * time.Second
)

// errBusy says that another call on an attachment goes on, for which the other volumes do not wait.
var errBusy = errors.New("another call on it goes on")

// DetachTogether is Detach for up to storage.MaxDetachBatch volumes of one driver and namespace, in one call, each from
// the node of its claim. stillNeeded reports for each whether another claim stands on its node. There is one result for
// each volume. An error means only that the volume may not be detached: the caller then uses Detach, which waits for
// other calls on the volume, tries the driver's other controllers, and takes the time that the driver needs.
func (c *Controllers) DetachTogether(ctx context.Context, volumes []claim.Volume, of []claim.Claim,
	stillNeeded func(ctx context.Context) ([]bool, error),
) []error {
	errs := make([]error, len(volumes))
	var unlocks []func()
	l := &attachmentLock{unlock: func() {
		for _, unlock := range unlocks {
			unlock()
		}
	}}
	defer l.release()
	for i, v := range volumes {
		if unlock := c.attachments.TryLock(attachment{v.VolumeRef, of[i].Node}); unlock != nil {
			unlocks = append(unlocks, unlock)
		} else {
			errs[i] = errBusy
		}
	}
	needed, err := stillNeeded(ctx)
	var asked []int
	for i := range volumes {
		switch {
		case errs[i] != nil:
		case err != nil:
			errs[i] = err
		case !needed[i]:
			asked = append(asked, i)
		}
	}
	if len(asked) == 0 {
		return errs
	}
	var results []error // nil: the driver has nothing to detach
	err = c.reach.call(ctx, volumes[0].PluginID, attaching.of(volumes[0]), 0,
		func(ctx context.Context, s storage.Client, d drivers.Driver) error {
			batch := make([]storage.Detachment, len(asked))
			for n, i := range asked {
				if batch[n], err = c.detachment(ctx, volumes[i], of[i]); err != nil {
					return err
				}
			}
			results, err = untilAnswered(ctx, l, func(ctx context.Context) ([]error, error) {
				ctx, cancel := context.WithTimeout(ctx, togetherTimeout)
				defer cancel()
				return s.DetachBatch(ctx, d.Ref(), batch, togetherWithin)
			})
			return err
		})
	for n, i := range asked {
		if errs[i] = err; err == nil && results != nil {
			errs[i] = results[n]
		}
	}
	return errs
}

func (c *Controllers) detachment(ctx context.Context, v claim.Volume, of claim.Claim) (one storage.Detachment,
	err error,
) {
	if one.NodeID = of.DriverNodeID; one.NodeID == "" {
		if one.NodeID, err = c.driverNodeID(v.PluginID, of.Node); err != nil {
			return one, err
		}
	}
	one.Volume, err = c.callVolume(ctx, v, claim.Capability{}, nil)
	return one, err
}
