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
	// unhealthyInterval is the longest wait between two polls of an unhealthy driver. Many drivers become ready a
	// moment after their socket exists, which only a poll can detect.
	unhealthyInterval = time.Second
	// minInterval is the shortest wait after a change of the connection's state, so that a driver that disconnects
	// at every call does not keep the bridge busy.
	minInterval = 50 * time.Millisecond
)

// Fingerprint implements storage.Storage. A report of an unhealthy driver contains what was last reported in this
// call.
func (b *Bridge) Fingerprint(ctx context.Context, d storage.Driver, opts storage.FingerprintOptions,
	report func(storage.Fingerprint) error,
) error {
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
		var probeTimeout time.Duration // the default
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

// untilNextLook waits for the interval, or until the connection changes, which shows at once that a driver has
// ended or is back.
func untilNextLook(ctx context.Context, conn *driver.Conn, healthy bool, interval time.Duration) error {
	if !healthy {
		interval = min(interval, unhealthyInterval)
	}
	pause := time.NewTimer(min(interval, minInterval))
	defer pause.Stop()
	wait, cancel := context.WithTimeout(ctx, interval)
	defer cancel()
	// The connection of a driver that has just answered is ready, or has been lost since.
	if state := conn.State(); !healthy || state == connectivity.Ready {
		conn.WaitForChange(wait, state)
	}
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// look reads everything for a fingerprint from the driver, and stops at the first answer that makes it unhealthy.
func look(ctx context.Context, conn *driver.Conn, d storage.Driver, probeTimeout time.Duration,
	last storage.Fingerprint,
) storage.Fingerprint {
	unhealthy := last
	unhealthy.Healthy = false
	ready, err := probe(ctx, conn, d, probeTimeout)
	if err == nil && !ready {
		unhealthy.Message = "the driver reports that it is not ready yet"
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

func probe(ctx context.Context, conn *driver.Conn, d storage.Driver, timeout time.Duration) (bool, error) {
	op := driver.Op{RPC: driver.Probe, Driver: d.ID, Timeout: timeout}
	resp, err := driver.Do(ctx, conn, op, func(ctx context.Context) (*csi.ProbeResponse, error) {
		return conn.Identity.Probe(ctx, &csi.ProbeRequest{})
	})
	if err != nil {
		return false, err
	}
	// A missing value means ready (CSI spec, ProbeResponse.ready).
	return resp.GetReady() == nil || resp.GetReady().GetValue(), nil
}

// describe returns the fingerprint of a driver that is ready.
func describe(ctx context.Context, conn *driver.Conn, d storage.Driver) (storage.Fingerprint, error) {
	info, err := driver.Do(ctx, conn, driver.Op{RPC: driver.GetPluginInfo, Driver: d.ID},
		func(ctx context.Context) (*csi.GetPluginInfoResponse, error) {
			return conn.Identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		})
	if err != nil {
		return storage.Fingerprint{}, err
	}
	controller, err := driver.Do(ctx, conn, driver.Op{RPC: driver.GetControllerCaps, Driver: d.ID},
		conn.FetchControllerCaps)
	if err != nil {
		return storage.Fingerprint{}, err
	}
	node, err := describeNode(ctx, conn, d)
	if err != nil {
		return storage.Fingerprint{}, err
	}
	fp := storage.Fingerprint{
		Healthy: true, Provider: info.GetName(), Version: info.GetVendorVersion(), Node: node,
	}
	if controller != nil {
		caps := controller.ControllerCapabilities // a copy: controller is shared with the calls
		fp.Controller = &caps
	}
	return fp, nil
}

// describeNode returns nil for a driver without a node service. A driver that never attaches need not implement
// NodeGetInfo (CSI spec, "NodeGetInfo"); any other failure of that call is an error.
func describeNode(ctx context.Context, conn *driver.Conn, d storage.Driver) (*storage.NodeCapabilities, error) {
	node, err := driver.Do(ctx, conn, driver.Op{RPC: driver.GetNodeCaps, Driver: d.ID}, conn.FetchNodeCaps)
	if err != nil || node == nil {
		return nil, err
	}
	caps := node.NodeCapabilities // a copy: node is shared with the calls
	info, err := driver.Do(ctx, conn, driver.Op{RPC: driver.GetNodeInfo, Driver: d.ID},
		func(ctx context.Context) (*csi.NodeGetInfoResponse, error) {
			info, err := conn.Node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
			switch {
			case err != nil:
				return nil, err
			case info.GetNodeId() == "":
				// Without one, a detach would detach the volume from all nodes.
				return nil, status.Error(codes.Internal,
					"NodeGetInfo answered without the required node_id: set it in the driver's flags or environment")
			}
			return info, nil
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
