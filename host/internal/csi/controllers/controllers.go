// Package controllers picks, checks and calls the controller side of CSI drivers: for the workloads'
// attach step, the leader's release of claims, and the API. On a single host the controller is that
// of this node's driver; the leader of a cluster picks one of the healthy ones (pick.go).
//
// What must stay true:
//
//   - An attach and a detach of one volume on one node never overlap, and whether to detach is
//     decided while no attach can start.
//   - An unknown or unhealthy driver is an error at once, unless the call may wait.
//   - Another controller is tried only if the node or its driver is unreachable. A driver's answer
//     is final. The error names every node that was tried.
//   - A volume's secrets are opened for one call and kept nowhere.
//   - A driver's error keeps its gRPC code (status.FromError) however it is wrapped.
//   - The package knows neither go-plugin nor raft; what the ledger knows of nodes comes through
//     Cluster.
//
// The two node-side calls that an API request makes, expansion and usage of a mounted volume, are
// here too.
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
	// ClusterID identifies this ledger. It is part of the names given to drivers, so that hosts with
	// ledgers of their own that share a storage system never get one another's volumes.
	ClusterID func(ctx context.Context) (string, error)
	// Calls makes calls to the drivers of this node.
	Calls drivers.Caller
	// Cluster reaches the drivers of all nodes, for a cluster's leader; nil: this is the only node.
	Cluster Cluster
	// Secrets opens a volume's sealed secrets, here or on a server that can.
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

// attachment is the key of the lock that Attach and Detach share.
type attachment struct {
	volume claim.VolumeRef
	node   string
}

// New makes Controllers. They have no goroutines and need no closing.
func New(cfg Config) *Controllers {
	c := &Controllers{cfg: cfg, attachWait: defaultAttachWait, wait: defaultWait}
	here := host{cfg.Node, cfg.Calls}
	c.reach = here
	if cfg.Cluster != nil {
		c.reach = &picker{host: here, cluster: cfg.Cluster, nodes: map[string]*load{}}
	}
	return c
}

// Exclusive locks a volume for a caller that reads it, calls the driver and then writes the ledger.
// It fails only if ctx ends first.
func (c *Controllers) Exclusive(ctx context.Context, ref claim.VolumeRef) (unlock func(), err error) {
	unlock, err = c.volumes.Lock(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("wait for another change of volume %q: %w", ref, err)
	}
	return unlock, nil
}

// defaultWait is how long an operator's call waits for a driver that is not healthy, as just after
// the agent's start.
const defaultWait = 5 * time.Second

// call makes one call to a controller of a driver. doing describes the call in its error.
func (c *Controllers) call(ctx context.Context, doing, driver string, need ability, fn call) error {
	return c.callWithin(ctx, c.wait, doing, driver, need, fn)
}

// callWithin is call with another limit on the wait for a healthy controller.
func (c *Controllers) callWithin(ctx context.Context, wait time.Duration, doing, driver string, need ability,
	fn call,
) error {
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

// call is one call to a driver's controller, on whichever node it runs.
type call func(ctx context.Context, s storage.Client, d drivers.Driver) error

// ability is what a controller must support for a call.
type ability struct {
	// what completes "none of its controllers can ...".
	what string
	has  func(c *storage.ControllerCapabilities) bool
	// optional: without the ability, the call is not needed.
	optional bool
	// secret: the call carries secrets.
	secret bool
	// namespace is the volume's; empty: the call is about no volume, or about all.
	namespace string
	// places are where the call's volume is accessible from; empty: everywhere, or it is not known.
	places []claim.Topology
	// remote: controllers do it for other places too, if none of the volume's is reachable.
	remote bool
}

// of is the ability for a call about a volume.
func (a ability) of(v claim.Volume) ability {
	a.namespace, a.places = v.Namespace, v.Topologies
	a.secret = a.secret || len(v.SealedSecrets) > 0
	return a
}

// with is the ability for a call with secrets that its caller gave.
func (a ability) with(secrets map[string]string) ability {
	a.secret = a.secret || len(secrets) > 0
	return a
}

// in is the ability for a call about something in other places.
func (a ability) in(places []claim.Topology) ability {
	a.places = places
	return a
}

// anyController is for calls that every controller supports.
var anyController = ability{has: func(*storage.ControllerCapabilities) bool { return true }}

var (
	attaching = ability{
		what: "attach volumes",
		has:  func(c *storage.ControllerCapabilities) bool { return c.AttachDetach }, optional: true, remote: true,
	}
	// detaching is not optional: what was attached is detached.
	detaching    = ability{what: "detach volumes", has: attaching.has, remote: true}
	provisioning = ability{
		what: "create and delete volumes",
		has:  func(c *storage.ControllerCapabilities) bool { return c.CreateDelete },
	}
	listing = ability{
		what: "list volumes",
		has:  func(c *storage.ControllerCapabilities) bool { return c.ListVolumes },
	}
	// expanding is optional: some drivers expand on the nodes alone.
	expanding = ability{
		what: "expand volumes",
		has:  func(c *storage.ControllerCapabilities) bool { return c.Expand }, optional: true,
	}
	snapshotting = ability{
		what: "take and delete snapshots",
		has:  func(c *storage.ControllerCapabilities) bool { return c.CreateDeleteSnapshot },
	}
	listingSnaps = ability{
		what: "list snapshots",
		has:  func(c *storage.ControllerCapabilities) bool { return c.ListSnapshots },
	}
)

// reach calls the controllers of drivers, and knows the drivers' state.
type reach interface {
	// call makes one call to a controller of the driver that has the ability, and waits up to wait
	// for one that is healthy.
	call(ctx context.Context, driver string, need ability, wait time.Duration, fn call) error
	// driver returns the driver with the last report of each node in reach.
	driver(id string) (claim.Driver, error)
}

// host is the reach of a single host: its own drivers.
type host struct {
	name  string
	calls drivers.Caller
}

func (h host) call(ctx context.Context, driver string, need ability, wait time.Duration, fn call) error {
	return h.calls.CallController(ctx, driver, wait, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		if need.optional && (d.Fingerprint.Controller == nil || !need.has(d.Fingerprint.Controller)) {
			return nil
		}
		if in, _ := inPlaces(h.reported(d), []string{h.name}, need.places); len(in) == 0 && !need.remote {
			return notIn(driver, need.places)
		}
		return fn(ctx, s, d)
	})
}

func (h host) driver(id string) (claim.Driver, error) {
	d, err := h.calls.Drivers.Get(id)
	return h.reported(d), err
}

// reported is a driver of this node as the ledger of a cluster would have it.
func (h host) reported(d drivers.Driver) claim.Driver {
	on := claim.NodeDriver{ID: d.ID, Type: claim.DriverType(d.Type), Healthy: d.Healthy, Message: d.Message}
	if n := d.Fingerprint.Node; n != nil {
		on.NodeID, on.Topology = n.NodeID, n.AccessibleTopology
		on.Node = &claim.NodeCapabilities{Expand: n.Expand}
	}
	return claim.Driver{ID: d.ID, Nodes: map[string]claim.NodeDriver{h.name: on}}
}

// expandsOnNodes reports whether a node service of the driver has EXPAND_VOLUME.
func (c *Controllers) expandsOnNodes(driver string) bool {
	d, err := c.reach.driver(driver)
	if err != nil {
		return false
	}
	for _, on := range d.Nodes {
		if on.Node != nil && on.Node.Expand {
			return true
		}
	}
	return false
}

// on returns a node's last report on the driver.
func (c *Controllers) on(driver, node string) (claim.NodeDriver, error) {
	d, err := c.reach.driver(driver)
	if err != nil {
		return claim.NodeDriver{}, err
	}
	on, ok := d.Nodes[node]
	if !ok {
		return on, fmt.Errorf("driver %q is not on node %q (see: pannier driver status %s)", driver, node, driver)
	}
	return on, nil
}

// driverNodeID is the driver's own id of a node. It must never be empty: a ControllerUnpublishVolume
// without one detaches the volume from all nodes.
func (c *Controllers) driverNodeID(driver, node string) (string, error) {
	d, err := c.on(driver, node)
	switch {
	case err != nil:
		return "", err
	case d.NodeID == "" && node == c.cfg.Node:
		return "", errors.New("the driver has not reported its own id of this node (NodeGetInfo)")
	case d.NodeID == "":
		return "", fmt.Errorf("the driver on node %q has not reported its own id of that node (NodeGetInfo)", node)
	default:
		return d.NodeID, nil
	}
}
