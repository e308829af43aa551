package controllers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/conditions"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/sdk/storage"
)

// Condition reads the condition of a volume from a controller of its driver (ControllerGetVolume,
// ControllerGetVolumeHealth); nil: the driver reports none. A volume that the driver does not have is abnormal.
func (c *Controllers) Condition(ctx context.Context, v claim.Volume) (condition *storage.Condition, err error) {
	err = c.callWithin(ctx, 0, reading(v.Definition), v.PluginID, anyController.of(v),
		func(ctx context.Context, s storage.Client, d drivers.Driver) error {
			condition, err = getCondition(ctx, s, d, v.Definition)
			return err
		})
	return condition, err
}

// ConditionsHere reads the condition of a volume that is mounted at a place from the driver of this node: from its node
// service, and from its controller if that is here too. With usage, also how full it is.
func (c *Controllers) ConditionsHere(ctx context.Context, v claim.Definition, at mounts.Place, usage bool) (
	answer conditions.Answer, err error,
) {
	if c := unusable(at); c != nil {
		return conditions.Answer{Node: c}, nil
	}
	err = c.cfg.Calls.Call(ctx, v.PluginID, 0, func(ctx context.Context, s storage.Client, d drivers.Driver) (err error) {
		if n := d.Fingerprint.Node; n != nil && n.VolumeStats && (n.VolumeCondition || usage) {
			var stats storage.Stats
			stats, err = volumeStats(ctx, s, d, v, at)
			answer.Node, answer.Usage = stats.Condition, stats.Usage
		}
		if c := d.ForController(); c.Healthy && c.Fingerprint.Controller != nil && c.Fingerprint.Controller.VolumeCondition {
			var failed error
			answer.Controller, failed = getCondition(ctx, s, c, v)
			err = errors.Join(err, failed)
		}
		return err
	})
	if at.Unexpanded != "" {
		answer.Node, err = unexpanded(at), nil
	}
	return answer, done(reading(v), v.PluginID, err)
}

// unusable is the condition of a volume whose file system does not answer, or fails all calls; nil: it is none. Its
// driver is not asked, since it would hang as well.
func unusable(at mounts.Place) *storage.Condition {
	err := mountuse.Answers(at.Target)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return &storage.Condition{Abnormal: true, Message: fmt.Sprintf("the file system at %s cannot be used: %v", at.Target, err)}
}

func unexpanded(at mounts.Place) *storage.Condition {
	return &storage.Condition{Abnormal: true, Message: at.Unexpanded}
}

func reading(v claim.Definition) string {
	return fmt.Sprintf("read the condition of volume %q (external id %q)", v.VolumeRef, v.ExternalID)
}

func getCondition(ctx context.Context, s storage.Client, d drivers.Driver, v claim.Definition,
) (*storage.Condition, error) {
	got, err := s.Get(ctx, d.Ref(), drivers.StorageVolume(v, claim.Capability{})) // the calls take no modes and no secrets
	switch status.Code(err) {
	case codes.OK:
		return got.Condition, nil
	case codes.NotFound:
		return &storage.Condition{Abnormal: true, Message: "the driver does not have the volume any more"}, nil
	case codes.Unimplemented:
		return nil, nil
	default:
		return nil, err
	}
}
