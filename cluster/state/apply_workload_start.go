package state

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

func (tx *writeTx) StartWorkload(c *command.StartWorkload) (zero command.StartWorkloadResult, _ error) {
	wanted, err := wantedClaims(c)
	if err != nil {
		return zero, err
	}
	workload, known, err := read[claim.Workload](tx.reader, workloadKey(c.Ref))
	if err != nil {
		return zero, err
	}
	if known && tx.fingerprint != nil && bytes.Equal(workload.StartedBy, tx.fingerprint) {
		return tx.repeatStart(wanted, workload)
	}
	if err := tx.checkRun(workload, c.RunID); err != nil {
		return zero, err
	}
	running := known && workload.Status == claim.Running
	if running && workload.Node != c.Node {
		return zero, claim.Conflict("workload %q runs on node %q, not on node %q", c.Ref, workload.Node, c.Node)
	}
	if known && workload.Status == claim.Waiting && workload.Node != c.Node {
		return zero, waitsElsewhere(workload, c.Node)
	}
	var runs *claim.Workload
	if running {
		runs = &workload
	} else if err := tx.checkEligible(c.Ref, c.Node); err != nil {
		return zero, err
	}
	fresh, err := tx.newTokens(c, runs)
	if err != nil {
		return zero, err
	}
	result := command.StartWorkloadResult{Workload: workload, Created: !running}
	taken := 0
	for _, want := range wanted {
		v, granted, created, err := tx.take(want, c.At)
		if err != nil {
			return zero, err
		}
		if created {
			granted.Index = tx.index
			taken++
		}
		result.Claims = append(result.Claims, granted)
		result.Volumes = append(result.Volumes, v)
	}
	if running {
		own, err := tx.ClaimsOf(c.Ref)
		if err != nil {
			return zero, err
		}
		if taken > 0 || len(own) != len(wanted) {
			return zero, claim.Conflict("workload %q runs already with other claims", c.Ref)
		}
		return result, nil
	}

	// Everything is decided; from here on there are only writes.
	result.Workload = claim.Workload{
		Ref: c.Ref, Node: c.Node, Status: claim.Running,
		CreatedAt: c.At, CreateIndex: tx.index, ModifyIndex: tx.index,
		RunID: c.RunID, StartedBy: tx.fingerprint, LastEndedRunID: workload.LastEndedRunID,
	}
	if known && workload.Status == claim.Waiting {
		result.Workload.After = workload.After
	}
	if err := tx.putWorkload(result.Workload, workload); err != nil {
		return zero, err
	}
	for i := range result.Claims {
		put := tx.putClaim
		if result.Claims[i].Index == tx.index {
			put = tx.addClaim
		}
		if err := put(&result.Claims[i]); err != nil {
			return zero, err
		}
		// The first claim sets the modes of the volume.
		result.Volumes[i].AccessMode = result.Claims[i].AccessMode
		result.Volumes[i].AttachmentMode = result.Claims[i].AttachmentMode
	}
	for _, t := range fresh {
		if _, err := tx.noteToken(t, c.At); err != nil {
			return zero, err
		}
	}
	return result, nil
}

// checkRun refuses commands of a run that was ended: they may arrive late, if the connection or the node was held
// up.
func (tx *writeTx) checkRun(w claim.Workload, runID string) error {
	if runID == "" {
		return nil
	}
	ended := w.LastEndedRunID == runID
	if !ended {
		var err error
		if _, ended, err = read[kept](tx.reader, keptKey(endedRun(runID))); err != nil {
			return err
		}
	}
	if !ended {
		return nil
	}
	return claim.Conflict("this run of workload %q was ended before", w.Ref)
}

// putWorkload stores a workload's record and replaces the previous one, which is zero if there is none.
func (tx *writeTx) putWorkload(now, before claim.Workload) error {
	var keys []string
	if before.Ref == now.Ref {
		keys = workloadIndexKeys(&before)
		tx.touch(TopicOnNode(before.Node))
	}
	tx.touch(TopicWorkloads, TopicWorkload(now.Ref), TopicOnNode(now.Node))
	return write(tx, workloadKey(now.Ref), &now, keys, workloadIndexKeys(&now))
}

// wantedClaims checks the arguments and sets what a claim takes from its workload.
func wantedClaims(c *command.StartWorkload) ([]claim.Claim, error) {
	if err := c.Ref.Validate(); err != nil {
		return nil, err
	}
	object := func() string { return fmt.Sprintf("workload %q", c.Ref) }
	if err := claim.CheckID(c.Node); err != nil {
		return nil, &claim.FieldError{Object: object(), Field: "node", Problem: err.Error()}
	}
	if len(c.Claims) > command.MaxClaims {
		return nil, &claim.FieldError{
			Object: object(), Field: "volume",
			Problem: fmt.Sprintf("is there %d times: at most %d are allowed", len(c.Claims), command.MaxClaims),
		}
	}
	wanted := make([]claim.Claim, len(c.Claims))
	seen := map[claim.VolumeRef]bool{}
	for i, w := range c.Claims {
		if problem := settleOwner(c, &w.Workload, &w.Node); problem != "" {
			return nil, &claim.FieldError{
				Object: object(), Field: "claim",
				Problem: fmt.Sprintf("on volume %q %s", w.Volume, problem),
			}
		}
		if seen[w.Volume] {
			return nil, &claim.FieldError{
				Object: object(), Field: "claim",
				Problem: fmt.Sprintf("on volume %q is wanted twice", w.Volume),
			}
		}
		seen[w.Volume] = true
		if err := w.Validate(); err != nil {
			return nil, err
		}
		wanted[i] = w
	}
	return wanted, nil
}

// settleOwner sets the workload and the node that a claim or a token of a start may leave empty. problem is how they
// differ from the start's; empty: they match.
func settleOwner(c *command.StartWorkload, workload *claim.WorkloadRef, node *string) (problem string) {
	if *node == "" {
		*node = c.Node
	}
	if *workload == (claim.WorkloadRef{}) {
		*workload = c.Ref
	}
	switch {
	case *workload != c.Ref:
		return fmt.Sprintf("is for workload %q", *workload)
	case *node != c.Node:
		return fmt.Sprintf("is for node %q, the workload is on node %q", *node, c.Node)
	default:
		return ""
	}
}

// take decides on one claim and writes nothing.
func (tx *writeTx) take(want claim.Claim, at time.Time) (v claim.Volume, granted claim.Claim, created bool, err error) {
	v, err = tx.definition(want.Volume)
	if err != nil {
		return v, granted, false, err
	}
	held, err := tx.holders(want)
	if err != nil {
		return v, granted, false, err
	}
	setModes(&v, held)
	granted, created, err = claim.Take(v, held, want, at)
	if err != nil || !created {
		return v, granted, created, err
	}
	if err := tx.checkRestoring(want.Volume, want.Mode, at); err != nil {
		return v, granted, false, err
	}
	granted.AttachedBy, err = tx.attachedBy(want.Volume, want.Node)
	return v, granted, true, err
}

// holders returns the claims that decide on another claim, in the order of the ledger: the volume's claims or, if
// claims of others cannot forbid it, the workload's own claim and one more for a refusal to name.
func (tx *writeTx) holders(want claim.Claim) ([]claim.Claim, error) {
	if !claim.AlwaysAllowed(want.AccessMode, want.Mode) {
		return tx.Claims(want.Volume)
	}
	held, err := tx.someClaims(want.Volume, 1)
	if err != nil || len(held) > 0 && held[0].Workload == want.Workload {
		return held, err
	}
	own, err := tx.Claim(want.Volume, want.Workload)
	switch {
	case errors.Is(err, claim.ErrClaimNotFound):
		return held, nil
	case err != nil:
		return nil, err
	}
	return append(held, own), nil
}
