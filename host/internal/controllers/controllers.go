package controllers

import (
	"context"
	"fmt"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/drivers"
	"github.com/pannier/pannier/sdk/storage"
)

// callTimeout bounds one call to a driver, its retries included: the plugin's
// own bound of 2 minutes and a margin, so that its better error comes first.
const callTimeout = 2*time.Minute + 15*time.Second

// Drivers are the CSI drivers of this node.
type Drivers interface {
	// Get reads one driver; the error of an unknown one names those that are known.
	Get(id string) (drivers.Driver, error)
}

// Config is what Controllers work with.
type Config struct {
	// Node is this node's name.
	Node string
	// ClusterID tells this ledger from all others, for all time. It is part of the
	// names that are given to drivers, so that hosts with a ledger each that share a
	// storage system never get one another's volumes.
	ClusterID string
	Drivers   Drivers
	// Storage leases a client of the storage plugin; release must be called.
	Storage func(ctx context.Context) (c storage.Client, release func(), err error)
	// Secrets opens a volume's sealed secrets.
	Secrets func(v claim.Volume) (map[string]string, error)
}

// Controllers make the calls. They are safe for concurrent use.
type Controllers struct {
	cfg         Config
	attachments keyed[attachment]
	volumes     keyed[claim.VolumeRef]
}

// attachment is what Attach and Detach exclude one another on.
type attachment struct {
	volume claim.VolumeRef
	node   string
}

// New makes Controllers. They own no goroutine and need no closing.
func New(cfg Config) *Controllers { return &Controllers{cfg: cfg} }

// Exclusive gives the caller the only right to change what a volume is, at its
// driver and in the ledger: for whoever reads, calls the driver and then writes.
// It fails only when ctx ends first.
func (c *Controllers) Exclusive(ctx context.Context, ref claim.VolumeRef) (unlock func(), err error) {
	unlock, err = c.volumes.lock(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("wait for another change of volume %q: %w", ref, err)
	}
	return unlock, nil
}

// healthy reads a driver that can be called.
func (c *Controllers) healthy(id string) (drivers.Driver, error) {
	d, err := c.cfg.Drivers.Get(id)
	if err == nil && !d.Healthy {
		err = fmt.Errorf("%w: %s (see: pannier driver status %s)", ErrUnhealthy, d.Message, id)
	}
	return d, err
}

// call makes one call to a healthy driver. doing says what is tried, on what, for
// the error.
func (c *Controllers) call(ctx context.Context, doing, driver string, fn func(ctx context.Context, s storage.Client, d drivers.Driver) error) error {
	d, err := c.healthy(driver)
	if err == nil {
		err = c.lease(ctx, func(ctx context.Context, s storage.Client) error { return fn(ctx, s, d) })
	}
	if err != nil {
		return fmt.Errorf("%s on driver %q: %w", doing, driver, plain(err))
	}
	return nil
}

// lease runs fn with a storage plugin's client.
func (c *Controllers) lease(ctx context.Context, fn func(ctx context.Context, s storage.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, release, err := c.cfg.Storage(ctx)
	if err != nil {
		return err
	}
	defer release()
	return fn(ctx, s)
}
