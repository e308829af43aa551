package state

import (
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// A command that releases a node ends when it has written this many bytes or read this many claims; another
// command continues. The bytes are estimated from names, since servers of two versions may encode records differently
// and have to end at the same one.
const (
	maxReleaseBytes = 64 << 10
	maxReleaseReads = 2 * command.MaxItems
	recordBytes     = 128 // of a record, without names
)

func (tx nodeWrites) SetNodeStatus(c *command.SetNodeStatus) (zero command.SetNodeStatusResult, _ error) {
	n, err := tx.knownNode(c.Name)
	if err != nil {
		return zero, err
	}
	if !c.Status.Valid() {
		return zero, &claim.FieldError{
			Object: fmt.Sprintf("node %q", c.Name), Field: "status",
			Problem: fmt.Sprintf("%q is unknown", c.Status),
		}
	}
	if err := claim.CheckBy(c.By); err != nil {
		return zero, err
	}
	if c.Continues != 0 && (n.Status != c.Status || n.StatusIndex != c.Continues) {
		return command.SetNodeStatusResult{Node: n}, nil // it has come back: its present claims may be mounted
	}
	same := n.Status == c.Status || n.Ready() && c.Status == claim.NodeReady
	staysDown := n.Status == claim.NodeDown && c.Status == claim.NodeDisconnected
	if !same && !staysDown {
		n.SetStatus(c.Status, c.At, tx.index)
		n.ModifyIndex, n.ModifiedAt = tx.index, c.At
		tx.touchDrivers(n)
		if err := tx.writeNode(&n); err != nil {
			return zero, err
		}
	}
	result := command.SetNodeStatusResult{Node: n}
	if c.Status != claim.NodeDown {
		return result, nil
	}
	down := nodeRelease{tx: tx.writeTx, c: c, result: &result}
	if err := down.workloads(); err != nil || result.More {
		return result, err
	}
	return result, down.claims()
}

// nodeRelease ends the workloads and releases the claims of a node that is down, as many as fit into one command.
type nodeRelease struct {
	tx     *writeTx
	c      *command.SetNodeStatus
	result *command.SetNodeStatusResult
	bytes  int // written, estimated
}

func (d *nodeRelease) full() bool {
	return d.bytes >= maxReleaseBytes || len(d.result.Freed) >= command.MaxItems ||
		len(d.result.Ended) >= command.MaxItems
}

// wrote counts a record whose key and fields have the names.
func (d *nodeRelease) wrote(names ...string) {
	d.bytes += recordBytes
	for _, name := range names {
		d.bytes += 2 * len(name)
	}
}

// workloads ends the workloads that run or wait on the node, each with all its claims.
func (d *nodeRelease) workloads() error {
	parts, err := d.tx.keys(span{base: workloadsByNode + d.c.Name + "/", limit: command.MaxItems + 1})
	if err != nil {
		return err
	}
	for _, part := range parts {
		w, found, err := read[claim.Workload](d.tx.reader, workloads+part)
		if err != nil {
			return err
		}
		if !found {
			return fault("index key %q leads to no record", workloadsByNode+d.c.Name+"/"+part)
		}
		held, err := d.tx.ClaimsOf(w.Ref)
		if err != nil {
			return err
		}
		if d.full() || len(d.result.Freed) > 0 && len(d.result.Freed)+len(held) > command.MaxItems {
			d.result.More = true
			return nil
		}
		ended := w
		ended.Status, ended.EndedAt, ended.ModifyIndex = claim.Ended, d.c.At, d.tx.index
		if err := d.tx.putWorkload(ended, w); err != nil {
			return err
		}
		d.wrote(w.Ref.Namespace, w.Ref.ID, w.Node)
		d.result.Ended = append(d.result.Ended, w.Ref)
		for i := range held {
			if err := d.free(&held[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// claims releases the claims of workloads that ended before.
func (d *nodeRelease) claims() error {
	parts, err := d.tx.keys(span{base: claimsByNode + d.c.Name + "/", after: d.c.After, limit: maxReleaseReads + 1})
	if err != nil {
		return err
	}
	d.result.Next = d.c.After
	for i, part := range parts {
		if d.full() || i == maxReleaseReads {
			d.result.More = true
			return nil
		}
		held, found, err := read[claim.Claim](d.tx.reader, claims+part)
		if err != nil {
			return err
		}
		if !found {
			return fault("index key %q leads to no record", claimsByNode+d.c.Name+"/"+part)
		}
		if err := d.free(&held); err != nil {
			return err
		}
		d.result.Next = part
	}
	d.result.Next = ""
	return nil
}

// free marks a claim as node-detached, unless its release is further already.
func (d *nodeRelease) free(held *claim.Claim) error {
	if !held.State.Before(claim.NodeDetached) {
		return nil
	}
	held.State, held.ModifiedAt = claim.NodeDetached, d.c.At
	if d.c.By != "" {
		held.ForcedBy, held.ForcedAt = d.c.By, d.c.At
	}
	d.wrote(held.Volume.Namespace, held.Volume.ID, held.Workload.Namespace, held.Workload.ID, held.Node)
	d.result.Freed = append(d.result.Freed, *held)
	return d.tx.putClaim(held)
}
