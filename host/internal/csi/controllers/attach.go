package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/sdk/storage"
)

// defaultAttachWait is how long an attach, a step of a workload's start, waits for a driver that is
// not healthy, such as one that is being restarted.
const defaultAttachWait = 30 * time.Second

// Attach attaches a volume, with its mount options, to a node and returns the driver's publish context (CSI
// spec, ControllerPublishVolume). If the driver's controller lacks PUBLISH_UNPUBLISH_VOLUME it does
// nothing. It may be repeated. intend is called before each call to a controller, while no detach of the volume from
// the node can run: it records the attachment, and its error, such as that the claim is gone, ends Attach.
func (c *Controllers) Attach(ctx context.Context, v claim.Volume, modes claim.Capability, node string,
	intend func(ctx context.Context) error,
) (publishContext map[string]string, err error) {
	doing := fmt.Sprintf("attach volume %q (external id %q) to node %q", v.VolumeRef, v.ExternalID, node)
	l, err := c.lockAttachment(ctx, doing, v.VolumeRef, node)
	if err != nil {
		return nil, err
	}
	defer l.release()
	if on, err := c.on(v.PluginID, node); err == nil {
		if err := v.CheckReachable(node, on.Topology); err != nil {
			return nil, fmt.Errorf("%s: %w", doing, err)
		}
	}
	err = c.callWithin(ctx, c.attachWait, doing, v.PluginID, attaching.of(v),
		func(ctx context.Context, s storage.Client, d drivers.Driver) error {
			id, err := c.driverNodeID(v.PluginID, node)
			if err != nil {
				return err
			}
			volume, err := c.callVolume(ctx, d, v, modes, nil)
			if err != nil {
				return err
			}
			if err := intend(ctx); err != nil {
				return &finalError{err}
			}
			publishContext, err = untilAnswered(ctx, l, func(ctx context.Context) (map[string]string, error) {
				return s.Attach(ctx, d.Ref(), storage.AttachRequest{
					Volume: volume, NodeID: id, ReadOnly: modes.AccessMode.ReadOnly(),
				})
			})
			return err
		})
	return publishContext, err
}

// Detach reverses Attach when the last claim of the volume on the node is released
// (ControllerUnpublishVolume). stillNeeded reports whether another claim stands on the node; it is
// called while no attach of the volume to the node can run. driverNodeID is the driver's own id of
// the node, from the claim. Detach may be repeated; called reports whether the driver was called. Only a controller's
// answer is a success: without one that attaches and detaches it fails.
func (c *Controllers) Detach(ctx context.Context, v claim.Volume, node, driverNodeID string,
	stillNeeded func(ctx context.Context) (bool, error),
) (called bool, err error) {
	doing := fmt.Sprintf("detach volume %q (external id %q) from node %q", v.VolumeRef, v.ExternalID, node)
	l, err := c.lockAttachment(ctx, doing, v.VolumeRef, node)
	if err != nil {
		return false, err
	}
	defer l.release()
	needed, err := stillNeeded(ctx)
	if err != nil {
		return false, fmt.Errorf("%s: look for other claims on it there: %w", doing, err)
	}
	if needed {
		return false, nil
	}
	err = c.callWithin(ctx, 0, doing, v.PluginID, detaching.of(v),
		func(ctx context.Context, s storage.Client, d drivers.Driver) error {
			if ctl := d.Fingerprint.Controller; ctl == nil || !detaching.has(ctl) {
				return status.Errorf(codes.Unimplemented, "it has no controller that can %s", detaching.what)
			}
			id := driverNodeID
			if id == "" {
				var err error
				if id, err = c.driverNodeID(v.PluginID, node); err != nil {
					return err
				}
			}
			volume, err := c.callVolume(ctx, d, v, claim.Capability{}, nil)
			if err != nil {
				return err
			}
			called = true
			_, err = untilAnswered(ctx, l, func(ctx context.Context) (struct{}, error) {
				return struct{}{}, s.Detach(ctx, d.Ref(), volume, id)
			})
			return err
		})
	return called, err
}

// answerWithin is how long a call that its caller gave up keeps the opposite one waiting.
const answerWithin = 30 * time.Second

// attachmentLock keeps other calls on the attachment of a volume to a node from being made.
type attachmentLock struct {
	unlock func()
	calls  sync.WaitGroup // that have no answer yet
}

func (c *Controllers) lockAttachment(ctx context.Context, doing string, ref claim.VolumeRef,
	node string,
) (*attachmentLock, error) {
	unlock, err := c.attachments.Lock(ctx, attachment{ref, node})
	if err != nil {
		return nil, fmt.Errorf("%s: wait for another call on it there: %w", doing, err)
	}
	return &attachmentLock{unlock: unlock}, nil
}

// release lets others in once the driver has answered.
func (l *attachmentLock) release() {
	go func() {
		l.calls.Wait()
		l.unlock()
	}()
}

// untilAnswered makes a call that changes an attachment. It returns when ctx ends. The call itself goes on, and so does
// the lock, until the driver has answered or answerWithin has passed: a driver that hangs would do it all the same, and
// the opposite call, which may go to another node's controller, would be done before it.
func untilAnswered[T any](ctx context.Context, l *attachmentLock, call func(context.Context) (T, error)) (T, error) {
	type answer struct {
		result T
		err    error
	}
	answered := make(chan answer, 1)
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.calls.Go(func() {
		defer cancel()
		result, err := call(calls)
		answered <- answer{result, err}
	})
	select {
	case a := <-answered:
		return a.result, a.err
	case <-ctx.Done():
		time.AfterFunc(answerWithin, cancel)
		var none T
		return none, context.Cause(ctx)
	}
}

func translate(d drivers.Driver, p mounts.Place) (target, staging string) {
	if p.Staging != "" {
		staging = d.Translate(p.Staging)
	}
	return d.Translate(p.Target), staging
}

// ExpandNode grows the volume mounted at a place to its new size (NodeExpandVolume). It may be
// repeated.
func (c *Controllers) ExpandNode(ctx context.Context, v claim.Volume, at mounts.Place, minBytes, maxBytes int64) error {
	doing := fmt.Sprintf("expand volume %q, mounted at %s,", v.VolumeRef, at.Target)
	return c.callHere(ctx, doing, v.PluginID, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		volume, err := c.callVolume(ctx, d, v, v.Modes(), nil)
		if err != nil {
			return err
		}
		target, staging := translate(d, at)
		_, err = s.ExpandNode(ctx, d.Ref(), storage.ExpandNodeRequest{
			Volume: volume, CapacityMin: minBytes, CapacityMax: maxBytes, VolumePath: target, StagingPath: staging,
		})
		return err
	})
}

// Stats reads the usage and condition of the volume mounted at a place (NodeGetVolumeStats).
func (c *Controllers) Stats(ctx context.Context, v claim.Definition, at mounts.Place) (stats storage.Stats, err error) {
	if c := unusable(at); c != nil {
		return storage.Stats{Condition: c}, nil
	}
	doing := fmt.Sprintf("read the usage of volume %q at %s", v.VolumeRef, at.Target)
	err = c.callHere(ctx, doing, v.PluginID, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		stats, err = volumeStats(ctx, s, d, v, at)
		return err
	})
	if at.Unexpanded != "" {
		stats.Condition, err = unexpanded(at), nil
	}
	return stats, err
}

func volumeStats(ctx context.Context, s storage.Client, d drivers.Driver, v claim.Definition, at mounts.Place,
) (storage.Stats, error) {
	target, staging := translate(d, at)
	return s.VolumeStats(ctx, d.Ref(), storage.StatsRequest{
		// NodeGetVolumeStats takes no modes and no secrets.
		Volume: drivers.StorageVolume(v, claim.Capability{}), VolumePath: target, StagingPath: staging,
	})
}
