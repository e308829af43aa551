package controllers

import (
	"context"
	"fmt"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/internal/kmutex"
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
