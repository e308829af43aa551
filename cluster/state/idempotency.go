package state

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// The outcome of a command with a key is kept for keptFor, by the leaders' time stamps, and for at most
// keptEntries entries of the log. Each command with a key deletes at most pruneAtOnce older outcomes.
const (
	keptFor     = time.Hour
	keptEntries = 1 << 18
	pruneAtOnce = 4
)

// kept is the outcome of a command with a key. It contains no records of volumes, claims, nodes and the ACL: a
// repeated command is answered with the present ones.
type kept struct {
	Key     string    `json:"key"`
	Command []byte    `json:"command"` // its fingerprint
	At      time.Time `json:"at"`
	Index   uint64    `json:"index"`
	Outcome []byte    `json:"outcome"`
}

// apply applies a command, once for each key, and what a leader decided only in its term.
func (tx *writeTx) apply(c command.Command) (any, error) {
	tx.fingerprint = nil
	if c == nil {
		return nil, nil // it means nothing to the ledger
	}
	if term := command.Term(c); term != 0 && term != tx.term {
		return nil, fmt.Errorf("%w: the leader of term %d decided this, and the leader of term %d wrote it into the log",
			command.ErrNotLeader, term, tx.term)
	}
	if command.Key(c) == "" {
		return tx.decide(c)
	}
	key := command.Key(c)
	if err := claim.CheckID(key); err != nil {
		return nil, &claim.FieldError{Object: "command", Field: "key", Problem: err.Error()}
	}
	fingerprint, err := command.Fingerprint(c)
	if err != nil {
		return nil, fault("fingerprint of %T: %w", c, err)
	}
	if start, is := c.(*command.StartWorkload); is {
		// The most frequent command by far: it is remembered in the record that it writes, the workload.
		tx.fingerprint = fingerprint
		return tx.StartWorkload(start)
	}
	before, found, err := read[kept](tx.reader, keptKey(key))
	switch {
	case err != nil:
		return nil, err
	case found && string(before.Command) != string(fingerprint):
		return nil, claim.Conflict("the key %q belongs to another command, at index %d", key, before.Index)
	case found:
		return tx.repeat(c, before)
	}
	at := command.At(c)
	result, err := tx.decide(c)
	if err != nil {
		return nil, err // a refusal is not kept: a repetition is decided again
	}
	if put, ok := result.(command.PutNodeResult); ok && !put.Changed {
		return result, nil // nothing was written, so nothing is kept
	}
	outcome, err := command.EncodeOutcome(lasting(result), nil)
	if err != nil {
		return nil, fault("keep the result of %T: %w", c, err)
	}
	k := kept{Key: key, Command: fingerprint, At: at, Index: tx.index, Outcome: outcome}
	if err := write(tx, keptKey(key), &k, nil, keptIndexKeys(&k)); err != nil {
		return nil, err
	}
	return result, tx.prune(at)
}

// pruned is the progress of prune, as parts of index keys: the last one that it deleted, since Badger does not
// remove deleted keys at once, and the oldest one left, empty if not known.
type pruned struct{ last, oldest string }

// prune deletes the oldest outcomes that have expired.
func (tx *writeTx) prune(at time.Time) error {
	before, first := timePart(at.Add(-keptFor)), indexPart(tx.index-min(tx.index, keptEntries))
	tooOld := func(part string) (key string, is bool) {
		index, rest, _ := strings.Cut(part, "/")
		stamp, key, _ := strings.Cut(rest, "/")
		return key, stamp < before || index < first
	}
	if oldest := tx.pruned.oldest; oldest != "" {
		if _, is := tooOld(oldest); !is {
			return nil
		}
	}
	tx.pruned.oldest = ""
	parts, err := tx.keys(span{base: keptByIndex, after: tx.pruned.last, limit: pruneAtOnce})
	if err != nil {
		return err
	}
	for _, part := range parts {
		key, is := tooOld(part)
		if !is {
			tx.pruned.oldest = part
			return nil
		}
		tx.delete(keptKey(key))
		tx.delete(keptByIndex + part)
		tx.pruned.last = part
	}
	return nil
}

// lasting returns the part of a result that cannot be read again later.
func lasting(result any) any {
	switch r := result.(type) {
	case command.RegisterVolumeResult:
		r.Volume = claim.Volume{}
		return r
	case command.DeregisterVolumeResult:
		r.Volume = claim.Volume{}
		left := make([]claim.Claim, len(r.LeftBehind))
		for i, c := range r.LeftBehind {
			left[i] = claim.Claim{
				Workload: c.Workload, Node: c.Node, Mode: c.Mode, State: c.State, Index: c.Index,
				TakenAt: c.TakenAt,
			}
		}
		r.LeftBehind = left
		return r
	case command.EndWorkloadResult:
		r.Claims = nil
		return r
	case command.AdvanceClaimsResult:
		return command.AdvanceClaimsResult{}
	case command.PutNodeResult:
		r.Node = claim.Node{}
		return r
	case command.SetNodeStatusResult:
		r.Node, r.Ended, r.Freed = claim.Node{}, nil, nil
		return r
	case claim.Node:
		return claim.Node{}
	case claim.Volume:
		return claim.Volume{}
	case []acl.Policy:
		return r[:0]
	case []acl.Role:
		return r[:0]
	case []acl.Token:
		return named(r)
	case command.ExpireACLTokensResult:
		r.Deleted = named(r.Deleted)
		return r
	default:
		return result
	}
}

func named(tokens []acl.Token) (out []acl.Token) {
	for _, t := range tokens {
		out = append(out, acl.Token{Accessor: t.Accessor, Name: t.Name, Type: t.Type})
	}
	return out
}

// repeat answers a command that was applied before. Records are read as they are now; for records that are gone
// there is only the name.
func (tx *writeTx) repeat(c command.Command, k kept) (any, error) {
	result, err := command.DecodeOutcome(c, k.Outcome)
	if err != nil {
		return nil, fault("outcome kept for key %q: %w", k.Key, err)
	}
	switch c := c.(type) {
	case *command.RegisterVolume:
		r := result.(command.RegisterVolumeResult)
		r.Volume, err = tx.volumeNow(c.Volume.VolumeRef)
		return r, err
	case *command.DeregisterVolume:
		r := result.(command.DeregisterVolumeResult)
		r.Volume.VolumeRef = c.Ref
		for i := range r.LeftBehind {
			r.LeftBehind[i].Volume = c.Ref
		}
		return r, nil
	case *command.EndWorkload:
		r := result.(command.EndWorkloadResult)
		if r.Found {
			r.Claims, err = tx.ClaimsOf(c.Ref)
		}
		return r, err
	case *command.AdvanceClaims:
		return tx.repeatAdvance(c)
	case *command.PutNode:
		r := result.(command.PutNodeResult)
		r.Node, err = tx.nodeNow(c.Node.Name)
		return r, err
	case *command.SetNodeStatus:
		r := result.(command.SetNodeStatusResult)
		r.Node, err = tx.nodeNow(c.Name)
		return r, err
	case *command.SetNodeDuty:
		return tx.nodeNow(c.Name)
	case *command.ResealVolume:
		return tx.volumeNow(c.Ref)
	case *command.PutACLPolicies:
		return standing(tx, c.Policies, func(p acl.Policy) string { return policyKey(p.Name) })
	case *command.PutACLRoles:
		return standing(tx, c.Roles, func(r acl.Role) string { return roleKey(r.Name) })
	case *command.PutACLTokens:
		return standing(tx, c.Tokens, func(t acl.Token) string { return aclTokenKey(t.Accessor) })
	default:
		return result, nil
	}
}

// repeatStart answers a repeated start from its arguments and the time of the first one: all claims of a run are
// taken by its start.
func (tx *writeTx) repeatStart(wanted []claim.Claim, started claim.Workload) (command.StartWorkloadResult, error) {
	started.Status, started.EndedAt, started.ModifyIndex = claim.Running, time.Time{}, started.CreateIndex
	r := command.StartWorkloadResult{Workload: started, Created: true}
	for _, granted := range wanted {
		granted.State, granted.Index = claim.Taken, started.CreateIndex
		granted.TakenAt, granted.ModifiedAt = started.CreatedAt, started.CreatedAt
		v, err := tx.volumeNow(granted.Volume)
		if err != nil {
			return r, err
		}
		v.AccessMode, v.AttachmentMode = granted.AccessMode, granted.AttachmentMode
		r.Claims, r.Volumes = append(r.Claims, granted), append(r.Volumes, v)
	}
	return r, nil
}

func (tx *writeTx) repeatAdvance(c *command.AdvanceClaims) (any, error) {
	result := command.AdvanceClaimsResult{Items: make([]command.Advanced, len(c.Items))}
	for i, item := range c.Items {
		held, gone, err := tx.advancing(item)
		if err != nil {
			return nil, err
		}
		result.Items[i] = command.Advanced{Claim: held, Gone: gone}
	}
	return result, nil
}

func (tx *writeTx) volumeNow(ref claim.VolumeRef) (claim.Volume, error) {
	v, err := tx.Volume(ref)
	if errors.Is(err, claim.ErrVolumeNotFound) {
		return claim.Volume{Definition: claim.Definition{VolumeRef: ref}}, nil
	}
	return v, err
}

func (tx *writeTx) nodeNow(name string) (claim.Node, error) {
	n, err := tx.Node(name)
	if errors.Is(err, claim.ErrNodeNotFound) {
		return claim.Node{Name: name}, nil
	}
	return n, err
}

// standing reads the records that a command has written, in its order; a record that is gone is returned as the
// command had it.
func standing[T any](tx *writeTx, written []T, key func(T) string) ([]T, error) {
	out := make([]T, len(written))
	for i, w := range written {
		now, found, err := read[T](tx.reader, key(w))
		if err != nil {
			return nil, err
		}
		out[i] = w
		if found {
			out[i] = now
		}
	}
	return out, nil
}
