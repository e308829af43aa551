package state

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

func (tx *writeTx) EndWorkload(c *command.EndWorkload) (zero command.EndWorkloadResult, _ error) {
	if err := errors.Join(c.Ref.Validate(), checkEnd(c)); err != nil {
		return zero, err
	}
	if err := tx.keepEnd(c); err != nil {
		return zero, err
	}
	workload, err := tx.Workload(c.Ref)
	if errors.Is(err, claim.ErrWorkloadNotFound) {
		return command.EndWorkloadResult{}, tx.endUnbegun(c)
	}
	if err != nil {
		return zero, err
	}
	if c.Node != "" && c.Node != workload.Node {
		return zero, nil // another node's, which keepEnd does not touch
	}
	before := workload
	if c.RunID != "" {
		workload.LastEndedRunID = c.RunID
	}
	if c.Run != 0 && c.Run != workload.CreateIndex ||
		c.RunID != "" && workload.RunID != "" && c.RunID != workload.RunID {
		// Another run, which its own caller ends.
		return command.EndWorkloadResult{}, tx.noteEnd(workload, before)
	}
	held, err := tx.ClaimsOf(c.Ref)
	if err != nil {
		return zero, err
	}
	if workload.Status != claim.Ended {
		workload.Status, workload.EndedAt, workload.ModifyIndex = claim.Ended, c.At, tx.index
	}
	if err := tx.noteEnd(workload, before); err != nil {
		return zero, err
	}
	for i := range held {
		if held[i].State != claim.Taken {
			continue
		}
		held[i].State, held[i].ModifiedAt = claim.Unpublishing, c.At
		if err := tx.putClaim(&held[i]); err != nil {
			return zero, err
		}
	}
	return command.EndWorkloadResult{Workload: workload, Claims: held, Found: true}, nil
}

// checkEnd checks the fields that name the run.
func checkEnd(c *command.EndWorkload) error {
	if c.RunID == "" {
		return nil
	}
	invalid := func(field string, err error) error {
		return &claim.FieldError{Object: fmt.Sprintf("workload %q", c.Ref), Field: field, Problem: err.Error()}
	}
	if err := claim.CheckID(c.Node); err != nil {
		return invalid("node", err)
	}
	if err := claim.CheckID(c.RunID); err != nil {
		return invalid("run_id", err)
	}
	return nil
}

// endedRun is the key under which the end of a run is kept, as long as the outcomes of commands are.
func endedRun(id string) string { return "run." + id }

// keepEnd remembers that a run was ended: a start of it may still be on its way.
func (tx *writeTx) keepEnd(c *command.EndWorkload) error {
	if c.RunID == "" {
		return nil
	}
	key := endedRun(c.RunID)
	if _, known, err := read[kept](tx.reader, keptKey(key)); err != nil || known {
		return err
	}
	k := kept{Key: key, At: c.At, Index: tx.index}
	if err := write(tx, keptKey(key), &k, nil, keptIndexKeys(&k)); err != nil {
		return err
	}
	return tx.prune(c.At)
}

// endUnbegun records the end of a run that the ledger does not know yet, unless its node could not have begun it.
func (tx *writeTx) endUnbegun(c *command.EndWorkload) error {
	if c.RunID == "" {
		return nil
	}
	n, _, err := read[claim.Node](tx.reader, nodeKey(c.Node))
	if err != nil || n.CheckNamespace(c.Ref.Namespace) != nil {
		return err
	}
	return tx.putWorkload(claim.Workload{
		Ref: c.Ref, Node: c.Node, Status: claim.Ended, CreatedAt: c.At, EndedAt: c.At,
		CreateIndex: tx.index, ModifyIndex: tx.index, RunID: c.RunID, LastEndedRunID: c.RunID,
	}, claim.Workload{})
}

// noteEnd stores the record if the end of a run has changed it; a repeated end changes nothing.
func (tx *writeTx) noteEnd(now, before claim.Workload) error {
	if now.LastEndedRunID == before.LastEndedRunID && now.Status == before.Status {
		return nil
	}
	return tx.putWorkload(now, before)
}

func (tx *writeTx) DeleteWorkloads(c *command.DeleteWorkloads) (zero command.DeleteWorkloadsResult, _ error) {
	var result command.DeleteWorkloadsResult
	var after string
	for len(result.Deleted) < command.MaxItems {
		part, w, found, err := tx.nextEnded(after)
		if err != nil {
			return zero, err
		}
		if !found || !w.EndedAt.Before(c.EndedBefore) {
			return result, nil
		}
		after = part
		busy, err := tx.any(claimsByWorkload + workloadPart(w.Ref) + "/")
		if err != nil {
			return zero, err
		}
		if busy {
			continue
		}
		if err := write(tx, workloadKey(w.Ref), (*claim.Workload)(nil), workloadIndexKeys(&w), nil); err != nil {
			return zero, err
		}
		tx.touch(TopicWorkloads, TopicWorkload(w.Ref))
		result.Deleted = append(result.Deleted, w.Ref)
	}
	result.More = true
	return result, nil
}

// nextEnded reads the workload that ended next after the one with this part of the index key.
func (tx *writeTx) nextEnded(after string) (part string, w claim.Workload, found bool, err error) {
	parts, err := tx.keys(span{base: workloadsByEnd, after: after, limit: 1})
	if err != nil || len(parts) == 0 {
		return "", w, false, err
	}
	_, ref, _ := strings.Cut(parts[0], "/")
	w, found, err = read[claim.Workload](tx.reader, workloads+ref)
	if err == nil && !found {
		err = fault("index key %q leads to no record", workloadsByEnd+parts[0])
	}
	return parts[0], w, found, err
}
