package state

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

func (tx nodeWrites) PutNode(c *command.PutNode) (zero command.PutNodeResult, _ error) {
	next := c.Node
	if err := next.Validate(); err != nil {
		return zero, err
	}
	old, err := tx.Node(next.Name)
	known := err == nil
	if err != nil && !errors.Is(err, claim.ErrNodeNotFound) {
		return zero, err
	}
	if known {
		if err := tx.checkSame(old, next); err != nil {
			return zero, err
		}
	}
	secret := next.SecretHash
	next.KeepOwn(old)
	if next.SecretHash == "" {
		next.SecretHash = secret // the first one wins
	}
	switch {
	case !known:
		next.CreateIndex, next.LostIndex = tx.index, tx.index
	case old.Ready() && old.SecretHash == next.SecretHash && saysTheSame(old, next):
		return command.PutNodeResult{Node: old}, nil
	case !old.Ready():
		next.SetStatus(claim.NodeReady, c.At, tx.index)
		tx.touchDrivers(next)
	}
	next.ModifyIndex, next.ModifiedAt = tx.index, c.At
	for _, id := range slices.Sorted(maps.Keys(next.Drivers)) {
		d, _, err := read[claim.Driver](tx.reader, driverKey(id))
		if err != nil {
			return zero, err
		}
		if next.Drivers[id].Type != claim.NodeService && !d.HadController && d.ControllersExpected == 0 {
			next.Approve(id, true)
		}
	}
	if err := tx.replaceDrivers(next.Name, old.Drivers, next.Drivers, c.At); err != nil {
		return zero, err
	}
	return command.PutNodeResult{Node: next, Changed: true}, tx.writeNode(&next)
}

// checkSame refuses the record of another machine, or of another boot while the earlier one may use its claims.
func (tx nodeWrites) checkSame(old, next claim.Node) error {
	if old.SecretHash != "" && old.SecretHash != next.SecretHash {
		return fmt.Errorf("node %q: %w: if its data directory was recreated, run \"pannier node purge %s\" first",
			next.Name, claim.ErrNodeSecret, next.Name)
	}
	if !old.AnotherBoot(next.BootID) {
		return nil
	}
	claimed, err := tx.any(claimsByNode + next.Name + "/")
	if err != nil || !claimed {
		return err
	}
	return old.EarlierBoot()
}

func (tx *writeTx) writeNode(n *claim.Node) error {
	tx.touch(TopicNodes, TopicNode(n.Name))
	return write(tx, nodeKey(n.Name), n, nil, nil)
}

// touchDrivers notifies who waits for the health of a node's drivers, which changes with the node's status.
func (tx *writeTx) touchDrivers(n claim.Node) {
	tx.touch(TopicDrivers)
	for id := range n.Drivers {
		tx.touch(TopicDriver(id))
	}
}

// saysTheSame compares two reports of a node without their times. A node that repeats its report writes
// nothing.
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

// replaceDrivers updates the counts of drivers by the difference between a node's previous and its present report,
// so the order in which nodes report does not matter.
func (tx nodeWrites) replaceDrivers(node string, before, now map[string]claim.NodeDriver, at time.Time) error {
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
			now[id] = was // only the time differs: keep the old record
			continue
		}
		if err := tx.replaceDriver(node, id, pointer(was, had), pointer(is, has), at); err != nil {
			return err
		}
	}
	return nil
}

func (tx nodeWrites) replaceDriver(node, id string, was, is *claim.NodeDriver, at time.Time) error {
	d, _, err := read[claim.Driver](tx.reader, driverKey(id))
	if err != nil {
		return err
	}
	d.ID = id
	d.Replace(was, is)
	d.ModifyIndex, d.ModifiedAt = tx.index, at
	if err := write(tx.writeTx, driverKey(id), &d, nil, nil); err != nil {
		return err
	}
	tx.touch(TopicDrivers, TopicDriver(id))
	return write(tx.writeTx, driverNodeKey(id, node), is, nil, nil)
}

func pointer[T any](v T, there bool) *T {
	if !there {
		return nil
	}
	return &v
}

func (tx nodeWrites) DeleteDrivers(c *command.DeleteDrivers) (zero command.DeleteDriversResult, _ error) {
	if err := checkCount("drivers to delete", "ids", len(c.IDs), command.MaxItems); err != nil {
		return zero, err
	}
	var result command.DeleteDriversResult
	for _, id := range c.IDs {
		d, found, err := read[claim.Driver](tx.reader, driverKey(id))
		if err != nil {
			return zero, err
		}
		if !found || !d.Unused() || !d.ModifiedAt.Before(c.IfUnusedBefore) {
			continue
		}
		named, err := tx.any(volumesByDriver + id + "/")
		if err != nil {
			return zero, err
		}
		if named {
			continue
		}
		if err := write(tx.writeTx, driverKey(id), (*claim.Driver)(nil), nil, nil); err != nil {
			return zero, err
		}
		tx.touch(TopicDrivers, TopicDriver(id))
		result.Deleted = append(result.Deleted, id)
	}
	return result, nil
}

// SetNodeDuty writes nothing if nothing changes.
func (tx nodeWrites) SetNodeDuty(c *command.SetNodeDuty) (zero claim.Node, _ error) {
	old, err := tx.knownNode(c.Name)
	if err != nil {
		return zero, err
	}
	n := old
	if c.Ineligible != nil {
		n.Ineligible = *c.Ineligible
	}
	switch {
	case c.StopDrain:
		n.Drain = nil
	case c.Drain != nil:
		n.Drain = n.Drain.Change(*c.Drain, c.At)
	}
	if c.Namespaces != nil {
		if err := claim.CheckNamespaces(c.Name, *c.Namespaces); err != nil {
			return zero, err
		}
		n.Namespaces = *c.Namespaces
	}
	if c.Approve != "" {
		if err := claim.CheckID(c.Approve); err != nil {
			return zero, &claim.FieldError{Object: fmt.Sprintf("node %q", c.Name), Field: "driver", Problem: err.Error()}
		}
		n.Approve(c.Approve, true)
		tx.touch(TopicDriver(c.Approve))
	}
	n.Approve(c.Revoke, false)
	if n.Ineligible == old.Ineligible && n.Drain == old.Drain && slices.Equal(n.Namespaces, old.Namespaces) &&
		len(n.ControllerOf) == len(old.ControllerOf) {
		return old, nil
	}
	n.ModifyIndex, n.ModifiedAt = tx.index, c.At
	err = tx.writeNode(&n)
	return n, err
}

// knownNode reads the node that a command names.
func (tx *writeTx) knownNode(name string) (claim.Node, error) {
	if err := claim.CheckID(name); err != nil {
		return claim.Node{}, &claim.FieldError{Object: fmt.Sprintf("node %q", name), Field: "name", Problem: err.Error()}
	}
	return tx.Node(name)
}

// checkEligible refuses new workloads on a node that takes none. A node that is not in the ledger has not reported
// yet, and may start what it has.
func (tx *writeTx) checkEligible(ref claim.WorkloadRef, node string) error {
	n, found, err := read[claim.Node](tx.reader, nodeKey(node))
	if err != nil || !found {
		return err
	}
	refusal := n.CheckEligible()
	if refusal == nil {
		refusal = n.CheckNamespace(ref.Namespace)
	}
	if refusal != nil {
		return fmt.Errorf("workload %q: %w", ref, refusal)
	}
	return nil
}

func (tx nodeWrites) DeleteNode(c *command.DeleteNode) (zero command.DeleteNodeResult, _ error) {
	old, err := tx.Node(c.Name)
	if errors.Is(err, claim.ErrNodeNotFound) {
		return command.DeleteNodeResult{}, nil
	}
	if err != nil {
		return zero, err
	}
	if c.IfDown != 0 && (old.Status != claim.NodeDown || old.StatusIndex != c.IfDown) {
		return command.DeleteNodeResult{}, nil
	}
	if err := tx.checkUnused(c.Name); err != nil {
		return zero, err
	}
	if err := tx.replaceDrivers(c.Name, old.Drivers, nil, c.At); err != nil {
		return zero, err
	}
	if err := write(tx.writeTx, nodeKey(c.Name), (*claim.Node)(nil), nil, nil); err != nil {
		return zero, err
	}
	tx.touch(TopicNodes, TopicNode(c.Name))
	return command.DeleteNodeResult{Found: true}, nil
}

// checkUnused refuses while a node has workloads or claims.
func (tx nodeWrites) checkUnused(name string) error {
	refuse := func(what string) error {
		return fmt.Errorf("node %q: %w: %s (\"pannier node drain -enable %s\" stops what runs there; "+
			"\"pannier node purge -force %s\" vouches that the node is down for good)",
			name, claim.ErrNodeInUse, what, name, name)
	}
	live, err := tx.keys(span{base: workloadsByNode + name + "/", limit: 1})
	if err != nil {
		return err
	}
	if len(live) > 0 {
		return refuse(fmt.Sprintf("workload %q runs or waits there", shown(live[0])))
	}
	held, err := tx.keys(span{base: claimsByNode + name + "/", limit: 1})
	if err != nil {
		return err
	}
	if len(held) > 0 {
		volume := strings.Join(strings.SplitN(held[0], "/", 3)[:2], "/")
		return refuse(fmt.Sprintf("there is a claim on volume %q", shown(volume)))
	}
	return nil
}

// shown formats the NAMESPACE/ID part of a key as operators write it.
func shown(part string) string {
	namespace, id, _ := strings.Cut(part, "/")
	return claim.VolumeRef{Namespace: namespace, ID: id}.String()
}
