package state

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

func (tx *writeTx) PutNode(c *command.PutNode) (any, error) {
	next := c.Node
	if err := next.Validate(); err != nil {
		return nil, err
	}
	old, err := tx.Node(next.Name)
	known := err == nil
	if err != nil && !errors.Is(err, claim.ErrNodeNotFound) {
		return nil, err
	}
	secret := next.SecretHash
	next.KeepOwn(old)
	if next.SecretHash == "" {
		next.SecretHash = secret // the first one wins
	}
	switch {
	case !known:
		next.CreateIndex = tx.index
	case old.SecretHash != "" && old.SecretHash != secret:
		return nil, fmt.Errorf("node %q: %w: if its data directory was set up anew, run \"pannier node purge %s\" first", next.Name, claim.ErrNodeSecret, next.Name)
	case old.Ready() && old.SecretHash == next.SecretHash && saysTheSame(old, next):
		return command.PutNodeResult{Node: old}, nil
	case !old.Ready():
		next.SetStatus(claim.NodeReady, c.At, tx.index)
	}
	next.ModifyIndex, next.ModifiedAt = tx.index, c.At
	if err := tx.replaceDrivers(next.Name, old.Drivers, next.Drivers, c.At); err != nil {
		return nil, err
	}
	return command.PutNodeResult{Node: next, Changed: true}, tx.writeNode(&next)
}

func (tx *writeTx) writeNode(n *claim.Node) error {
	tx.touch(TopicNodes, TopicNode(n.Name))
	return write(tx, nodeKey(n.Name), n, nil, nil)
}

// saysTheSame compares what a node says of itself, but not when it said so: a
// node that repeats itself writes nothing.
func saysTheSame(a, b claim.Node) bool {
	return a.BootID == b.BootID && a.Address == b.Address && maps.Equal(a.Attributes, b.Attributes) &&
		maps.EqualFunc(a.Drivers, b.Drivers, sameDriver) && slices.EqualFunc(a.Devices, b.Devices, sameDevices)
}

func sameDevices(a, b claim.NodeDevices) bool {
	if !maps.Equal(a.Attributes, b.Attributes) {
		return false
	}
	a.Attributes, b.Attributes = nil, nil
	return reflect.DeepEqual(a, b)
}

func sameDriver(a, b claim.NodeDriver) bool {
	a.UpdatedAt, b.UpdatedAt = time.Time{}, time.Time{}
	if len(a.Topology) == 0 && len(b.Topology) == 0 {
		a.Topology, b.Topology = nil, nil
	}
	return reflect.DeepEqual(a, b)
}

// replaceDrivers brings the drivers' counts from what a node said to what it says,
// by the difference of the two: so counts are right whatever order nodes speak in.
func (tx *writeTx) replaceDrivers(node string, before, now map[string]claim.NodeDriver, at time.Time) error {
	ids := slices.Sorted(maps.Keys(before))
	for id := range now {
		if _, there := before[id]; !there {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		was, had := before[id]
		is, has := now[id]
		if had && has && sameDriver(was, is) {
			now[id] = was // said again at another time: as it was
			continue
		}
		if err := tx.replaceDriver(node, id, pointer(was, had), pointer(is, has), at); err != nil {
			return err
		}
	}
	return nil
}

func (tx *writeTx) replaceDriver(node, id string, was, is *claim.NodeDriver, at time.Time) error {
	d, _, err := read[claim.Driver](&tx.ReadTx, driverKey(id))
	if err != nil {
		return err
	}
	d.ID = id
	d.Replace(was, is)
	d.ModifyIndex, d.ModifiedAt = tx.index, at
	if err := write(tx, driverKey(id), &d, nil, nil); err != nil {
		return err
	}
	tx.touch(TopicDrivers, TopicDriver(id))
	return write(tx, driverNodeKey(id, node), is, nil, nil)
}

func pointer[T any](v T, there bool) *T {
	if !there {
		return nil
	}
	return &v
}

func (tx *writeTx) DeleteDrivers(c *command.DeleteDrivers) (any, error) {
	if len(c.IDs) > command.MaxItems {
		return nil, &claim.FieldError{Object: "drivers to delete", Field: "ids", Problem: fmt.Sprintf("are %d: at most %d are allowed", len(c.IDs), command.MaxItems)}
	}
	var result command.DeleteDriversResult
	for _, id := range c.IDs {
		d, found, err := read[claim.Driver](&tx.ReadTx, driverKey(id))
		if err != nil {
			return nil, err
		}
		if !found || !d.Unused() || !d.ModifiedAt.Before(c.IfUnusedBefore) {
			continue
		}
		named, err := tx.any(volumesByDriver + id + "/")
		if err != nil {
			return nil, err
		}
		if named {
			continue
		}
		if err := write(tx, driverKey(id), (*claim.Driver)(nil), nil, nil); err != nil {
			return nil, err
		}
		tx.touch(TopicDrivers, TopicDriver(id))
		result.Deleted = append(result.Deleted, id)
	}
	return result, nil
}

// Identify keeps the first identity that the cluster is given.
func (tx *writeTx) Identify(c *command.Identify) (any, error) {
	if err := c.Cluster.Validate(); err != nil {
		return nil, err
	}
	standing, found, err := read[claim.Cluster](&tx.ReadTx, identity)
	if err != nil || found {
		return command.IdentifyResult{Cluster: standing}, err
	}
	c.Cluster.CreatedAt = c.At
	tx.touch(TopicCluster)
	return command.IdentifyResult{Cluster: c.Cluster}, write(tx, identity, &c.Cluster, nil, nil)
}
