package bridge

import (
	"context"
	"reflect"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/driver"
	"github.com/pannier/pannier/sdk/storage"
)

const (
	defaultInterval     = 30 * time.Second
	defaultFirstTimeout = 30 * time.Second
	// unhealthyInterval is the longest wait between two polls of a driver that is
	// not healthy: many become ready a moment after their socket is there, and
	// nothing but a poll tells.
	unhealthyInterval = time.Second
	// minInterval is the shortest wait after a change of the connection's state: a
	// driver that hangs up on every call must not keep the bridge busy.
	minInterval = 50 * time.Millisecond
)

// Fingerprint implements storage.Storage. A report of an unhealthy driver
// carries what was last known of it in this call.
func (b *Bridge) Fingerprint(ctx context.Context, d storage.Driver, opts storage.FingerprintOptions, report func(storage.Fingerprint) error) error {
	if opts.Interval <= 0 {
		opts.Interval = defaultInterval
	}
	if opts.ProbeTimeout <= 0 {
		opts.ProbeTimeout = defaultFirstTimeout
	}
	conn, release, err := b.pool.Acquire(d.Endpoint)
	if err != nil {
		return err
	}
	defer release()

	var last storage.Fingerprint
	for first := true; ; first = false {
		var probeTimeout time.Duration // the usual one
		if first {
			probeTimeout = opts.ProbeTimeout
		}
		now := look(ctx, conn, d, probeTimeout, last)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if first || !reflect.DeepEqual(now, last) {
			if err := report(now); err != nil {
				return err
			}
			last = now
		}
		if err := untilNextLook(ctx, conn, now.Healthy, opts.Interval); err != nil {
			return err
		}
	}
}

// untilNextLook waits for the interval, or less when the connection changes:
// that is how the death and the return of a driver are seen at once.
func untilNextLook(ctx context.Context, conn *driver.Conn, healthy bool, interval time.Duration) error {
	if !healthy {
		interval = min(interval, unhealthyInterval)
	}
	pause := time.NewTimer(min(interval, minInterval))
	defer pause.Stop()
	wait, cancel := context.WithTimeout(ctx, interval)
	defer cancel()
	// The connection of a driver that has just answered is ready, or lost since.
	if state := conn.State(); !healthy || state == connectivity.Ready {
		conn.WaitForChange(wait, state)
	}
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// look asks the driver all that a fingerprint says, and stops at the first
// answer that makes it unhealthy.
func look(ctx context.Context, conn *driver.Conn, d storage.Driver, probeTimeout time.Duration, last storage.Fingerprint) storage.Fingerprint {
	unhealthy := last
	unhealthy.Healthy = false
	ready, err := probe(ctx, conn, d, probeTimeout)
	if err == nil && !ready {
		unhealthy.Message = "the driver says that it is not ready yet"
		return unhealthy
	}
	var now storage.Fingerprint
	if err == nil {
		now, err = describe(ctx, conn, d)
	}
	if err != nil {
		unhealthy.Message = status.Convert(err).Message()
		return unhealthy
	}
	return now
}

// Probe implements storage.Storage.
func (b *Bridge) Probe(ctx context.Context, d storage.Driver, timeout time.Duration) (bool, error) {
	conn, release, err := b.pool.Acquire(d.Endpoint)
	if err != nil {
		return false, err
	}
	defer release()
	return probe(ctx, conn, d, timeout)
}

func probe(ctx context.Context, conn *driver.Conn, d storage.Driver, timeout time.Duration) (bool, error) {
	op := driver.Op{RPC: driver.Probe, Driver: d.ID, Timeout: timeout}
	resp, err := driver.Do(ctx, conn, op, func(ctx context.Context) (*csi.ProbeResponse, error) {
		return conn.Identity.Probe(ctx, &csi.ProbeRequest{})
	})
	if err != nil {
		return false, err
	}
	// A driver that does not say is ready (CSI spec, ProbeResponse.ready).
	return resp.GetReady() == nil || resp.GetReady().GetValue(), nil
}

// describe is the fingerprint of a driver that is ready.
func describe(ctx context.Context, conn *driver.Conn, d storage.Driver) (storage.Fingerprint, error) {
	info, err := driver.Do(ctx, conn, driver.Op{RPC: driver.GetPluginInfo, Driver: d.ID},
		func(ctx context.Context) (*csi.GetPluginInfoResponse, error) {
			return conn.Identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		})
	if err != nil {
		return storage.Fingerprint{}, err
	}
	controller, err := driver.Do(ctx, conn, driver.Op{RPC: driver.GetControllerCaps, Driver: d.ID}, conn.FetchControllerCaps)
	if err != nil {
		return storage.Fingerprint{}, err
	}
	node, err := describeNode(ctx, conn, d)
	if err != nil {
		return storage.Fingerprint{}, err
	}
	fp := storage.Fingerprint{Healthy: true, Provider: info.GetName(), Version: info.GetVendorVersion(), Node: node}
	if controller != nil {
		caps := controller.ControllerCapabilities // a copy: controller is shared with the calls
		fp.Controller = &caps
	}
	return fp, nil
}

// describeNode is nil for a driver without a node service. One that never
// attaches need not implement NodeGetInfo (CSI spec, "NodeGetInfo"); any other
// failure of that call is one.
func describeNode(ctx context.Context, conn *driver.Conn, d storage.Driver) (*storage.NodeCapabilities, error) {
	node, err := driver.Do(ctx, conn, driver.Op{RPC: driver.GetNodeCaps, Driver: d.ID}, conn.FetchNodeCaps)
	if err != nil || node == nil {
		return nil, err
	}
	caps := node.NodeCapabilities // a copy: node is shared with the calls
	info, err := driver.Do(ctx, conn, driver.Op{RPC: driver.GetNodeInfo, Driver: d.ID},
		func(ctx context.Context) (*csi.NodeGetInfoResponse, error) {
			return conn.Node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return &caps, nil
	case err != nil:
		return nil, err
	}
	caps.NodeID = info.GetNodeId()
	caps.MaxVolumes = info.GetMaxVolumesPerNode()
	caps.AccessibleTopology = info.GetAccessibleTopology().GetSegments()
	return &caps, nil
}
