package state

import (
	"errors"
	"fmt"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// PutToken records a token of a running workload or, for an existing record, what Consul answered, whatever became
// of its workload.
func (tx *writeTx) PutToken(c *command.PutToken) (zero command.PutTokenResult, _ error) {
	next := c.Token
	if err := next.Validate(); err != nil {
		return zero, err
	}
	standing, found, err := read[claim.Token](tx.reader, tokenKey(next.ID))
	if err != nil {
		return zero, err
	}
	if !found {
		if err := tx.checkRunning(next); err != nil {
			return zero, err
		}
		return tx.noteToken(next, c.At)
	}
	if !standing.SamePurpose(next) {
		return zero, otherPurpose(standing)
	}
	// A repeated intent changes nothing.
	if next.Accessor == "" || next.Accessor == standing.Accessor && next.ExpiresAt.Equal(standing.ExpiresAt) {
		return command.PutTokenResult{Token: standing}, nil
	}
	standing.Accessor, standing.ExpiresAt, standing.ModifyIndex = next.Accessor, next.ExpiresAt, tx.index
	tx.touch(TopicTokensOn(standing.Node))
	keys := tokenIndexKeys(&standing)
	return command.PutTokenResult{Token: standing}, write(tx, tokenKey(standing.ID), &standing, keys, keys)
}

// noteToken records a new token.
func (tx *writeTx) noteToken(t claim.Token, at time.Time) (command.PutTokenResult, error) {
	t.CreatedAt, t.CreateIndex, t.ModifyIndex = at, tx.index, tx.index
	tx.touch(TopicTokensOn(t.Node))
	return command.PutTokenResult{Token: t}, write(tx, tokenKey(t.ID), &t, nil, tokenIndexKeys(&t))
}

// checkRunning refuses a new token if its workload does not run on its node.
func (tx *writeTx) checkRunning(t claim.Token) error {
	w, err := tx.Workload(t.Workload)
	switch {
	case errors.Is(err, claim.ErrWorkloadNotFound):
	case err != nil:
		return err
	case w.Status == claim.Running && w.Node == t.Node:
		return nil
	}
	return fmt.Errorf("token for service %q: workload %q on node %q: %w", t.Service, t.Workload, t.Node,
		claim.ErrNotRunning)
}

func otherPurpose(standing claim.Token) error {
	return claim.Conflict("token %q exists for service %q of workload %q on node %q",
		standing.ID, standing.Service, standing.Workload, standing.Node)
}

// newTokens returns the tokens that a start must record. A workload that runs already must have all of them, and a
// new run none of them: a token of an earlier run may be about to be revoked.
func (tx *writeTx) newTokens(c *command.StartWorkload, runs *claim.Workload) ([]claim.Token, error) {
	wanted, err := wantedTokens(c)
	if err != nil {
		return nil, err
	}
	for _, want := range wanted {
		standing, found, err := read[claim.Token](tx.reader, tokenKey(want.ID))
		switch {
		case err != nil:
			return nil, err
		case found && !standing.SamePurpose(want):
			return nil, otherPurpose(standing)
		case found && (runs == nil || !standing.BelongsTo(*runs)):
			return nil, claim.Conflict("token %q belongs to an earlier run of workload %q: a new start needs new ids",
				want.ID, c.Ref)
		case !found && runs != nil:
			return nil, claim.Conflict("workload %q runs already with other tokens", c.Ref)
		}
	}
	if runs != nil {
		return nil, nil
	}
	return wanted, nil
}

// wantedTokens checks the arguments and sets what a token takes from its workload.
func wantedTokens(c *command.StartWorkload) ([]claim.Token, error) {
	object := func() string { return fmt.Sprintf("workload %q", c.Ref) }
	if len(c.Tokens) > command.MaxTokens {
		return nil, &claim.FieldError{
			Object: object(), Field: "service",
			Problem: fmt.Sprintf("needs a token %d times: at most %d are allowed", len(c.Tokens), command.MaxTokens),
		}
	}
	wanted := make([]claim.Token, len(c.Tokens))
	seen := map[string]bool{}
	for i, w := range c.Tokens {
		if problem := settleOwner(c, &w.Workload, &w.Node); problem != "" {
			return nil, &claim.FieldError{Object: object(), Field: "token", Problem: fmt.Sprintf("%q %s", w.ID, problem)}
		}
		if seen[w.ID] {
			return nil, &claim.FieldError{Object: object(), Field: "token", Problem: fmt.Sprintf("%q is wanted twice", w.ID)}
		}
		seen[w.ID] = true
		if err := w.Validate(); err != nil {
			return nil, err
		}
		wanted[i] = w
	}
	return wanted, nil
}

// DeleteTokens deletes the records of tokens.
func (tx *writeTx) DeleteTokens(c *command.DeleteTokens) (zero command.DeleteTokensResult, _ error) {
	if err := checkCount("tokens to delete", "ids", len(c.IDs), command.MaxItems); err != nil {
		return zero, err
	}
	var result command.DeleteTokensResult
	for _, id := range c.IDs {
		t, found, err := read[claim.Token](tx.reader, tokenKey(id))
		if err != nil {
			return zero, err
		}
		if !found {
			continue
		}
		if err := write(tx, tokenKey(id), (*claim.Token)(nil), tokenIndexKeys(&t), nil); err != nil {
			return zero, err
		}
		tx.touch(TopicTokensOn(t.Node))
		result.Deleted = append(result.Deleted, t)
	}
	return result, nil
}
