package noderecord

import (
	"context"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/sdk/storage"
)

// Directory is the nodes in this server's ledger, and the way to their drivers. It implements controllers.Cluster.
type Directory struct {
	Cluster *cluster.Node
	// Calls makes calls to the drivers of a node (peer.Nodes.Storage).
	Calls func(node string) storage.Client
}

// Driver reads a driver with what each node reports of it.
func (d *Directory) Driver(id string) (driver claim.Driver, err error) {
	err = d.read(func(tx *state.ReadTx) error {
		driver, err = tx.Driver(id)
		return err
	})
	return driver, err
}

// Node reads a node's record.
func (d *Directory) Node(name string) (node claim.Node, err error) {
	err = d.read(func(tx *state.ReadTx) error {
		node, err = tx.Node(name)
		return err
	})
	return node, err
}

// read reads this server's ledger without waiting. Only the leader picks controllers, and its ledger is up to date.
func (d *Directory) read(fn func(tx *state.ReadTx) error) error {
	return d.Cluster.Read(context.Background(), fn)
}

// Servers are the servers of raft's configuration.
func (d *Directory) Servers() ([]string, error) { return d.Cluster.Servers() }

// Changed is closed by the next change of the driver's health, and when ctx ends.
func (d *Directory) Changed(ctx context.Context, driver string) <-chan struct{} {
	return d.Cluster.Watch(ctx, state.TopicDriver(driver))
}

// Storage makes calls to the drivers of a node.
func (d *Directory) Storage(node string) storage.Client { return d.Calls(node) }
