package state

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

func (tx *writeTx) AdvanceClaims(c *command.AdvanceClaims) (zero command.AdvanceClaimsResult, _ error) {
	result := command.AdvanceClaimsResult{Items: make([]command.Advanced, len(c.Items))}
	if err := errors.Join(checkItems(c.Items), claim.CheckBy(c.By)); err != nil {
		return zero, err
	}
	for i, item := range c.Items {
		held, gone, err := tx.advancing(item)
		if err != nil {
			return zero, err
		}
		if gone {
			result.Items[i].Gone = true
			continue
		}
		if !claim.CanAdvance(held.State, item.To) {
			return zero, fmt.Errorf("claim of workload %q on volume %q: from %s to %s: %w",
				item.Workload, item.Volume, held.State, item.To, claim.ErrBackwards)
		}
		result.Items[i].Claim = held
	}

	var lost []string // the nodes of claims that an operator takes from them
	for i, item := range c.Items {
		one := &result.Items[i]
		if c.By != "" && !one.Gone {
			lost = append(lost, one.Claim.Node)
		}
		switch {
		case one.Gone:
		case item.To == claim.Freed:
			if err := tx.freeClaim(&one.Claim); err != nil {
				return zero, err
			}
			*one = command.Advanced{Gone: true}
		case one.Claim.State != item.To || c.By != "":
			one.Claim.State, one.Claim.ModifiedAt = item.To, c.At
			if by := cmp.Or(c.By, item.ForcedBy); by != "" {
				one.Claim.ForcedBy, one.Claim.ForcedAt = by, c.At
			}
			if err := tx.putClaim(&one.Claim); err != nil {
				return zero, err
			}
		}
	}
	return result, tx.noteLost(lost)
}

// noteLost records that claims of the nodes were released without them.
func (tx *writeTx) noteLost(nodes []string) error {
	for _, name := range nodes {
		n, err := tx.Node(name)
		if errors.Is(err, claim.ErrNodeNotFound) || err == nil && n.LostIndex == tx.index {
			continue
		}
		if err != nil {
			return err
		}
		n.LostIndex, n.ModifyIndex = tx.index, tx.index
		if err := tx.writeNode(&n); err != nil {
			return err
		}
	}
	return nil
}

// advancing reads the claim to be advanced. gone: it was freed before; what exists then, if anything, is a later
// claim.
func (tx *writeTx) advancing(item command.Advance) (held claim.Claim, gone bool, err error) {
	held, err = tx.Claim(item.Volume, item.Workload)
	if errors.Is(err, claim.ErrClaimNotFound) || err == nil && item.Index != 0 && item.Index != held.Index {
		return claim.Claim{}, true, nil
	}
	return held, false, err
}

func checkItems(items []command.Advance) error {
	invalid := func(format string, args ...any) error {
		return &claim.FieldError{Object: "claims to advance", Field: "items", Problem: fmt.Sprintf(format, args...)}
	}
	if err := checkCount("claims to advance", "items", len(items), command.MaxItems); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, item := range items {
		if err := errors.Join(item.Volume.Validate(), item.Workload.Validate(), claim.CheckBy(item.ForcedBy)); err != nil {
			return err
		}
		if !item.To.Valid() {
			return invalid("name the unknown state %q", item.To)
		}
		key := claimKey(item.Volume, item.Workload)
		if seen[key] {
			return invalid("name the claim of workload %q on volume %q twice", item.Workload, item.Volume)
		}
		seen[key] = true
	}
	return nil
}

// addClaim stores a new claim.
func (tx *writeTx) addClaim(c *claim.Claim) error { return tx.writeClaim(c, nil, c) }

// putClaim stores a claim and moves the index keys of the existing record.
func (tx *writeTx) putClaim(c *claim.Claim) error { return tx.replaceClaim(c, c) }

// freeClaim deletes a claim.
func (tx *writeTx) freeClaim(c *claim.Claim) error { return tx.replaceClaim(c, nil) }

func (tx *writeTx) replaceClaim(which, now *claim.Claim) error {
	old, found, err := read[claim.Claim](tx.reader, claimKey(which.Volume, which.Workload))
	if err != nil {
		return err
	}
	if !found {
		return tx.writeClaim(which, nil, now)
	}
	return tx.writeClaim(which, &old, now)
}

// writeClaim changes a claim from old to now; nil: there is none.
func (tx *writeTx) writeClaim(which, old, now *claim.Claim) error {
	var before, after []string
	releasing := false
	if old != nil {
		tx.touch(TopicOnNode(old.Node))
		before = claimIndexKeys(old)
		releasing = old.State.Releasing()
	}
	if now != nil {
		after = claimIndexKeys(now)
		releasing = releasing || now.State.Releasing()
	}
	if releasing {
		tx.touch(TopicReleasing)
	}
	tx.touch(TopicClaims(which.Volume), TopicWorkload(which.Workload), TopicOnNode(which.Node))
	return write(tx, claimKey(which.Volume, which.Workload), now, before, after)
}
