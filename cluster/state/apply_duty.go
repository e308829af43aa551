package state

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// setNodeDuty writes nothing where an operator wants nothing new.
func (tx *writeTx) setNodeDuty(c *command.SetNodeDuty) (any, error) {
	old, err := tx.knownNode(c.Name)
	if err != nil {
		return nil, err
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
	if n.Ineligible == old.Ineligible && n.Drain == old.Drain {
		return command.SetNodeDutyResult{Node: old}, nil
	}
	n.ModifyIndex, n.ModifiedAt = tx.index, c.At
	return command.SetNodeDutyResult{Node: n}, tx.writeNode(&n)
}

// knownNode reads a node that a command names.
func (tx *writeTx) knownNode(name string) (claim.Node, error) {
	if err := claim.CheckID(name); err != nil {
		return claim.Node{}, &claim.FieldError{Object: fmt.Sprintf("node %q", name), Field: "name", Problem: err.Error()}
	}
	return tx.Node(name)
}

// checkEligible refuses new workloads on a node that takes none. A node that the ledger does
// not know has not told yet what it is, and may start what it has.
func (tx *writeTx) checkEligible(ref claim.WorkloadRef, node string) error {
	n, err := tx.Node(node)
	if errors.Is(err, claim.ErrNodeNotFound) {
		return nil
	}
	if err == nil {
		err = n.CheckEligible()
	}
	if err == nil || isFault(err) {
		return err
	}
	return fmt.Errorf("workload %q: %w", ref, err)
}

func (tx *writeTx) deleteNode(c *command.DeleteNode) (any, error) {
	old, err := tx.Node(c.Name)
	if errors.Is(err, claim.ErrNodeNotFound) {
		return command.DeleteNodeResult{}, nil
	}
	if err != nil {
		return nil, err
	}
	if c.IfUnused {
		if err := tx.checkUnused(c.Name); err != nil {
			return nil, err
		}
	}
	if err := tx.replaceDrivers(c.Name, old.Drivers, nil, c.At); err != nil {
		return nil, err
	}
	if err := write(tx, nodeKey(c.Name), (*claim.Node)(nil), nil, nil); err != nil {
		return nil, err
	}
	tx.touch(TopicNodes, TopicNode(c.Name))
	return command.DeleteNodeResult{Found: true}, nil
}

// checkUnused refuses while something is on a node.
func (tx *writeTx) checkUnused(name string) error {
	refuse := func(what string) error {
		return fmt.Errorf("node %q: %w: %s (\"pannier node drain -enable %s\" stops what runs there; "+
			"\"pannier node purge -force %s\" vouches that the node is down for good)", name, claim.ErrNodeInUse, what, name, name)
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
		return refuse(fmt.Sprintf("a claim on volume %q stands there", shown(volume)))
	}
	lost, err := tx.claimsWithoutNode(name)
	if err == nil && len(lost) > 0 {
		err = refuse(fmt.Sprintf("a claim on volume %q stands there", lost[0].Volume))
	}
	return err
}

// shown is a NAMESPACE/ID part of a key as operators name it.
func shown(part string) string {
	namespace, id, _ := strings.Cut(part, "/")
	return claim.VolumeRef{Namespace: namespace, ID: id}.String()
}
