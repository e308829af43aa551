package noderecord

import (
	"context"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/sdk/storage"
)

// Registrar keeps this node's record in the ledger up to date.
type Registrar struct {
	Name   string
	BootID string
	// Address is where other agents reach this one, and SecretHash identifies the node (peer.Secret). Both are empty
	// on a standalone host.
	Address, SecretHash string
	Cluster             cluster.Ledger
	Drivers             interface {
		List() []drivers.Driver
		Changed() <-chan struct{}
	}
	Devices interface {
		List() []devices.Group
		Changed() <-chan struct{}
	}
	Log hclog.Logger

	writing sync.Mutex
}

// Run writes the record at once and after each change of a driver or a device, until ctx ends. It retries after
// errors.
func (r *Registrar) Run(ctx context.Context) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 10*time.Second
	for {
		changed, others := r.Drivers.Changed(), r.Devices.Changed()
		var again <-chan time.Time
		if err := r.Put(ctx); err == nil {
			pause.Reset()
		} else if ctx.Err() == nil {
			r.Log.Warn("this node's record could not be written: retrying", "error", err)
			again = time.After(pause.NextBackOff())
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-others:
		case <-again:
		}
	}
}

// Put writes the record once. Concurrent calls write one after another, each what it then finds: the record that
// comes last into the ledger is the newest.
func (r *Registrar) Put(ctx context.Context) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	_, err := cluster.Apply(ctx, r.Cluster, &command.PutNode{Node: r.record()})
	return err
}

func (r *Registrar) record() claim.Node {
	n := claim.Node{
		Name: r.Name, BootID: r.BootID, Address: r.Address, SecretHash: r.SecretHash,
		Drivers: map[string]claim.NodeDriver{},
	}
	for _, d := range r.Drivers.List() {
		n.Drivers[d.ID] = nodeDriver(d)
	}
	groups := r.Devices.List()
	if more := len(groups) - claim.MaxDeviceGroups; more > 0 {
		r.Log.Warn("this node has more groups of devices than its record can hold: the last ones are left out", "groups",
			len(groups), "left_out", more)
		groups = groups[:claim.MaxDeviceGroups]
	}
	for _, g := range groups {
		n.Devices = append(n.Devices, nodeDevices(g))
	}
	return n
}

// nodeDevices converts a group of devices for the ledger.
func nodeDevices(g devices.Group) claim.NodeDevices {
	out := claim.NodeDevices{
		Plugin: g.Plugin, Vendor: g.Vendor, Type: g.Type, Name: g.Name, Total: len(g.Devices), Attributes: g.Attributes,
	}
	for _, d := range g.Devices {
		if d.Healthy {
			out.Healthy++
		}
	}
	return out
}

// nodeDriver converts a driver for the ledger.
func nodeDriver(d drivers.Driver) claim.NodeDriver {
	fp := d.Fingerprint
	out := claim.NodeDriver{
		ID: d.ID, Type: claim.DriverType(d.Type), Healthy: d.Healthy, Message: d.Message,
		Provider: fp.Provider, Version: fp.Version,
		Controller: controllerCapabilities(fp.Controller),
	}
	if c := d.Controller; c != nil {
		out.Type, out.ControllerApart = claim.Monolith, &claim.DriverHealth{Healthy: c.Healthy, Message: c.Message}
	}
	if n := fp.Node; n != nil {
		out.NodeID, out.MaxVolumes, out.Topology = n.NodeID, n.MaxVolumes, n.AccessibleTopology
		out.Node = &claim.NodeCapabilities{
			StageUnstage: n.StageUnstage, VolumeStats: n.VolumeStats, Expand: n.Expand, VolumeCondition: n.VolumeCondition,
			SingleNodeMultiWriter: n.SingleNodeMultiWriter, VolumeMountGroup: n.VolumeMountGroup,
		}
	}
	return out
}

func controllerCapabilities(c *storage.ControllerCapabilities) *claim.ControllerCapabilities {
	if c == nil {
		return nil
	}
	out := claim.ControllerCapabilities(*c)
	return &out
}
