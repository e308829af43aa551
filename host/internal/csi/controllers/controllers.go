package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/internal/kmutex"
	"github.com/pannier/pannier/sdk/storage"
)

// Config is what Controllers work with.
type Config struct {
	// Node is this node's name.
	Node string
	// ClusterID tells this ledger from all others, for all time. It is part of the
	// names that are given to drivers, so that hosts with a ledger each that share a
	// storage system never get one another's volumes.
	ClusterID func(ctx context.Context) (string, error)
	// Calls reaches the drivers of this node.
	Calls drivers.Caller
	// Cluster reaches those of all nodes, for the leader of several; nil: there are none
	// but this one.
	Cluster Cluster
	// Secrets opens a volume's sealed secrets, here or on the server that can.
	Secrets func(ctx context.Context, v claim.Volume) (map[string]string, error)
}

// Controllers make the calls. They are safe for concurrent use.
type Controllers struct {
	cfg   Config
	reach reach
	// How long a call waits for a driver that is not healthy; tests shorten it.
	attachWait, wait time.Duration
	attachments      kmutex.Locks[attachment]
	volumes          kmutex.Locks[claim.VolumeRef]
}

// attachment is what Attach and Detach exclude one another on.
type attachment struct {
	volume claim.VolumeRef
	node   string
}

// New makes Controllers. They own no goroutine and need no closing.
func New(cfg Config) *Controllers {
	c := &Controllers{cfg: cfg, attachWait: defaultAttachWait, wait: defaultWait}
	here := host{cfg.Node, cfg.Calls}
	c.reach = here
	if cfg.Cluster != nil {
		c.reach = &picker{host: here, cluster: cfg.Cluster, nodes: map[string]*load{}}
	}
	return c
}

// Exclusive gives the caller the only right to change what a volume is, at its
// driver and in the ledger: for whoever reads, calls the driver and then writes.
// It fails only when ctx ends first.
func (c *Controllers) Exclusive(ctx context.Context, ref claim.VolumeRef) (unlock func(), err error) {
	unlock, err = c.volumes.Lock(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("wait for another change of volume %q: %w", ref, err)
	}
	return unlock, nil
}

// defaultWait is how long an operator's call waits for a driver that is not
// healthy, as one is not when the agent has just started.
const defaultWait = 5 * time.Second

// call makes one call to a controller of a driver. doing says what is tried, on what,
// for the error.
func (c *Controllers) call(ctx context.Context, doing, driver string, need ability, fn call) error {
	return c.callWithin(ctx, c.wait, doing, driver, need, fn)
}

// callWithin is call with another time for a controller to become healthy.
func (c *Controllers) callWithin(ctx context.Context, wait time.Duration, doing, driver string, need ability, fn call) error {
	return done(doing, driver, c.reach.call(ctx, driver, need, wait, fn))
}

// callHere makes one call to the driver of this node.
func (c *Controllers) callHere(ctx context.Context, doing, driver string, fn call) error {
	return done(doing, driver, c.cfg.Calls.Call(ctx, driver, c.wait, fn))
}

func done(doing, driver string, err error) error {
	if err != nil {
		return fmt.Errorf("%s on driver %q: %w", doing, driver, err)
	}
	return nil
}

// ErrOffline says that the driver expands only volumes that nobody uses.
var ErrOffline = errors.New("the driver can expand it only while nobody uses it")

// call is one call to a driver's controller, on whichever node it is.
type call func(ctx context.Context, s storage.Client, d drivers.Driver) error

// ability is what a controller must be able to do for a call.
type ability struct {
	// what reads as "none of its controllers can ...".
	what string
	has  func(c *storage.ControllerCapabilities) bool
	// spared: where the driver has it not, the call is not needed.
	spared bool
}

// anyController is for calls that every controller answers.
var anyController = ability{has: func(*storage.ControllerCapabilities) bool { return true }}

var (
	attaching    = ability{what: "attach volumes", has: func(c *storage.ControllerCapabilities) bool { return c.AttachDetach }, spared: true}
	provisioning = ability{what: "create and delete volumes", has: func(c *storage.ControllerCapabilities) bool { return c.CreateDelete }}
	listing      = ability{what: "list volumes", has: func(c *storage.ControllerCapabilities) bool { return c.ListVolumes }}
	expanding    = ability{what: "expand volumes", has: func(c *storage.ControllerCapabilities) bool { return c.Expand }}
	snapshotting = ability{what: "take and delete snapshots", has: func(c *storage.ControllerCapabilities) bool { return c.CreateDeleteSnapshot }}
	listingSnaps = ability{what: "list snapshots", has: func(c *storage.ControllerCapabilities) bool { return c.ListSnapshots }}
)

// reach is the way to the controllers of drivers, and to what is known of the drivers.
type reach interface {
	// call makes one call to a controller of the driver that has the ability, and
	// waits at most so long for one that is healthy.
	call(ctx context.Context, driver string, need ability, wait time.Duration, fn call) error
	// attaches says whether the driver's volumes are attached to nodes at all. It fails
	// where that cannot be told.
	attaches(driver string) (bool, error)
	// on is the driver as it is on a node, as it last said.
	on(driver, node string) (claim.NodeDriver, error)
}

// host is the reach of a host alone: its own drivers.
type host struct {
	name  string
	calls drivers.Caller
}

func (h host) call(ctx context.Context, driver string, need ability, wait time.Duration, fn call) error {
	return h.calls.Call(ctx, driver, wait, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		if need.spared && (d.Fingerprint.Controller == nil || !need.has(d.Fingerprint.Controller)) {
			return nil
		}
		return fn(ctx, s, d)
	})
}

func (h host) attaches(driver string) (bool, error) {
	d, err := h.calls.Drivers.Get(driver)
	if err != nil {
		return false, err
	}
	if fp := d.Fingerprint; !d.Healthy && fp.Provider == "" && fp.Controller == nil && fp.Node == nil {
		return false, fmt.Errorf("driver %q: %w, so it is not known whether it attaches volumes: %s (see: pannier driver status %s)",
			driver, drivers.ErrUnhealthy, d.Message, driver)
	}
	ctl := d.Fingerprint.Controller
	return ctl != nil && ctl.AttachDetach, nil
}

func (h host) on(driver, node string) (claim.NodeDriver, error) {
	if node != h.name {
		return claim.NodeDriver{}, fmt.Errorf("the driver's own id of node %q is not known on node %q", node, h.name)
	}
	d, err := h.calls.Drivers.Get(driver)
	if err != nil {
		return claim.NodeDriver{}, err
	}
	out := claim.NodeDriver{ID: driver, Healthy: d.Healthy, Message: d.Message}
	if n := d.Fingerprint.Node; n != nil {
		out.NodeID, out.Topology = n.NodeID, n.AccessibleTopology
	}
	return out, nil
}

// driverNodeID is the driver's own id of a node. It must never be empty: a
// ControllerUnpublishVolume without one detaches from all nodes.
func (c *Controllers) driverNodeID(driver, node string) (string, error) {
	d, err := c.reach.on(driver, node)
	switch {
	case err != nil:
		return "", err
	case d.NodeID == "" && node == c.cfg.Node:
		return "", errors.New("the driver has not told its own id of this node (NodeGetInfo)")
	case d.NodeID == "":
		return "", fmt.Errorf("the driver on node %q has not told its own id of that node (NodeGetInfo)", node)
	default:
		return d.NodeID, nil
	}
}
