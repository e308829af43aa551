package state

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// SetNodeDuty writes nothing where an operator wants nothing new.
func (tx *writeTx) SetNodeDuty(c *command.SetNodeDuty) (any, error) {
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
	record, err := tx.get(nodeKey(node))
	if err != nil || record == nil {
		return err
	}
	refusal, err := tx.eligible.check(node, record)
	if err == nil && refusal != nil {
		err = fmt.Errorf("workload %q: %w", ref, refusal)
	}
	return err
}

// eligible remembers what a node's record says of its taking workloads: the record is long, and
// is asked at every start. Nobody else's opinion of the same record is another.
type eligible map[string]opinion

type opinion struct {
	of      [sha256.Size]byte // the record
	refusal error
}

// maxOpinions bounds the nodes that are remembered.
const maxOpinions = 1 << 12

// check says why a node's record refuses workloads, or nil. The error is a fault.
func (e eligible) check(node string, record []byte) (refusal, err error) {
	sum := sha256.Sum256(record)
	if known, ok := e[node]; ok && known.of == sum {
		return known.refusal, nil
	}
	n, err := decode[claim.Node](record)
	if err != nil {
		return nil, fault("get %q: %w", nodeKey(node), err)
	}
	if len(e) >= maxOpinions {
		clear(e)
	}
	e[node] = opinion{sum, n.CheckEligible()}
	return e[node].refusal, nil
}

func (tx *writeTx) DeleteNode(c *command.DeleteNode) (any, error) {
	old, err := tx.Node(c.Name)
	if errors.Is(err, claim.ErrNodeNotFound) {
		return command.DeleteNodeResult{}, nil
	}
	if err != nil {
		return nil, err
	}
	if c.IfDown != 0 && (old.Status != claim.NodeDown || old.StatusIndex != c.IfDown) {
		return command.DeleteNodeResult{}, nil
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
