package state

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// maxChain bounds the waiting workloads that are searched for a cycle.
const maxChain = 1024

func (tx *writeTx) AwaitWorkload(c *command.AwaitWorkload) (zero command.AwaitWorkloadResult, _ error) {
	if err := checkAwait(c); err != nil {
		return zero, err
	}
	old, err := tx.Workload(c.Ref)
	known := err == nil
	if err != nil && !errors.Is(err, claim.ErrWorkloadNotFound) {
		return zero, err
	}
	if err := tx.checkRun(old, c.RunID); err != nil {
		return zero, err
	}
	waiting := known && old.Status == claim.Waiting
	switch {
	case known && old.Status == claim.Running:
		return zero, claim.Conflict("workload %q runs on node %q", c.Ref, old.Node)
	case waiting && old.Node != c.Node:
		return zero, waitsElsewhere(old, c.Node)
	case !waiting:
		if err := tx.checkEligible(c.Ref, c.Node); err != nil {
			return zero, err
		}
	}
	if err := tx.checkCycle(c.Ref, c.After); err != nil {
		return zero, err
	}
	left, err := tx.left(c.After)
	if err != nil {
		return zero, err
	}
	next := claim.Workload{
		Ref: c.Ref, Node: c.Node, Status: claim.Waiting, After: c.After,
		CreatedAt: c.At, CreateIndex: tx.index, ModifyIndex: tx.index, RunID: c.RunID, LastEndedRunID: old.LastEndedRunID,
	}
	if waiting {
		if slices.Equal(old.After, c.After) {
			return command.AwaitWorkloadResult{Workload: old, Left: left}, nil
		}
		next.CreatedAt, next.CreateIndex = old.CreatedAt, old.CreateIndex
	}
	return command.AwaitWorkloadResult{Workload: next, Left: left}, tx.putWorkload(next, old)
}

func checkAwait(c *command.AwaitWorkload) error {
	if err := c.Ref.Validate(); err != nil {
		return err
	}
	invalid := func(field, problem string) error {
		return &claim.FieldError{Object: fmt.Sprintf("workload %q", c.Ref), Field: field, Problem: problem}
	}
	if err := claim.CheckID(c.Node); err != nil {
		return invalid("node", err.Error())
	}
	if len(c.After) > command.MaxAfter {
		return invalid("after", fmt.Sprintf("names %d workloads: at most %d are allowed", len(c.After), command.MaxAfter))
	}
	for i, ref := range c.After {
		if err := ref.Validate(); err != nil {
			return err
		}
		if slices.Contains(c.After[:i], ref) {
			return invalid("after", fmt.Sprintf("names %q twice", ref))
		}
	}
	return nil
}

func waitsElsewhere(w claim.Workload, node string) error {
	return claim.Conflict("workload %q waits on node %q, not on node %q", w.Ref, w.Node, node)
}

// checkCycle follows the workloads that ref would wait for, and those that they wait for, and refuses if that
// leads back to ref.
func (tx *writeTx) checkCycle(ref claim.WorkloadRef, after []claim.WorkloadRef) error {
	search := cycleSearch{tx: tx, target: ref, seen: map[claim.WorkloadRef]bool{}}
	return search.follow([]claim.WorkloadRef{ref}, after)
}

type cycleSearch struct {
	tx     *writeTx
	target claim.WorkloadRef
	seen   map[claim.WorkloadRef]bool
}

// follow extends a chain of workloads that wait for one another.
func (s *cycleSearch) follow(chain, after []claim.WorkloadRef) error {
	for _, ref := range after {
		longer := append(slices.Clip(chain), ref)
		if ref == s.target {
			names := make([]string, len(longer))
			for i, one := range longer {
				names[i] = one.SeenFrom(ref.Namespace)
			}
			return fmt.Errorf("%w: %s", claim.ErrCycle, strings.Join(names, " waits for "))
		}
		if s.seen[ref] {
			continue
		}
		s.seen[ref] = true
		w, err := s.tx.Workload(ref)
		switch {
		case errors.Is(err, claim.ErrWorkloadNotFound):
			continue
		case err != nil:
			return err
		case w.Status != claim.Waiting:
			continue
		case len(s.seen) > maxChain:
			return &claim.FieldError{
				Object: fmt.Sprintf("workload %q", s.target), Field: "after",
				Problem: fmt.Sprintf("leads over more than %d workloads that wait", maxChain),
			}
		}
		if err := s.follow(longer, w.After); err != nil {
			return err
		}
	}
	return nil
}
