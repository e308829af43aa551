package state

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

func (tx volumeWrites) TakeMark(c *command.TakeMark) (zero claim.Mark, _ error) {
	ofVolume := c.Ref != claim.VolumeRef{}
	if !c.Mark.Act.Valid(ofVolume) {
		return zero, &claim.FieldError{Object: "mark", Field: "act", Problem: fmt.Sprintf("is %q", c.Mark.Act)}
	}
	if err := cmp.Or(claim.CheckBy(c.Mark.By), claim.CheckBy(c.Mark.Call)); err != nil {
		return zero, err
	}
	if !ofVolume {
		return tx.markLedger(c)
	}
	if err := c.Ref.Validate(); err != nil {
		return zero, err
	}
	v, err := tx.definition(c.Ref)
	if err != nil {
		return zero, err
	}
	if v.ModifyIndex != c.IfModifyIndex {
		return zero, claim.Conflict("volume %q has changed at index %d, after it was read at %d", c.Ref, v.ModifyIndex,
			c.IfModifyIndex)
	}
	held, err := tx.Claims(c.Ref)
	if err != nil {
		return zero, err
	}
	if len(held) > 0 {
		return zero, c.Mark.Act.Conflict(c.Ref, held, c.At)
	}
	if err := tx.checkRestoring(c.Ref, "", c.At); err != nil {
		return zero, err
	}
	mark, ok := c.Mark.Take(v.Mark, tx.index, c.At)
	if !ok {
		return zero, v.Mark.Refuse(c.Ref, "", c.At)
	}
	err = tx.setMark(v, &mark, c.At)
	return mark, err
}

// markLedger marks the whole ledger. Neither a claim nor an act on a volume may be in it, since the snapshot that
// replaces it may have neither.
func (tx volumeWrites) markLedger(c *command.TakeMark) (zero claim.Mark, _ error) {
	held, err := records[claim.Claim](tx.reader, span{base: claims, limit: 1})
	if err != nil {
		return zero, err
	}
	if len(held) > 0 {
		return zero, c.Mark.Act.Conflict(held[0].Volume, held, c.At)
	}
	marked, err := tx.MarkedVolumes()
	if err != nil {
		return zero, err
	}
	if len(marked) > 0 {
		return zero, marked[0].Mark.Refuse(marked[0].VolumeRef, "", c.At)
	}
	mark, _ := c.Mark.Take(nil, tx.index, c.At)
	mark.Term = tx.term
	err = write(tx.writeTx, restoring, &mark, nil, nil)
	return mark, err
}

// checkRestoring refuses what a restore of the ledger excludes. Only the leader that has marked the ledger restores it,
// so its mark means nothing in a later term.
func (tx *writeTx) checkRestoring(ref claim.VolumeRef, mode claim.Mode, at time.Time) error {
	mark, found, err := read[claim.Mark](tx.reader, restoring)
	if err != nil || !found || mark.Term != tx.term {
		return err
	}
	return mark.Refuse(ref, mode, at)
}

func (tx volumeWrites) EndMark(c *command.EndMark) (zero claim.Mark, _ error) {
	if c.Ref == (claim.VolumeRef{}) {
		mark, found, err := read[claim.Mark](tx.reader, restoring)
		if err == nil && found && mark.Index == c.Index {
			tx.delete(restoring)
		}
		return mark, err
	}
	v, err := tx.definition(c.Ref)
	if errors.Is(err, claim.ErrVolumeNotFound) || err == nil && (v.Mark == nil || v.Mark.Index != c.Index) {
		return zero, nil
	}
	if err != nil {
		return zero, err
	}
	return *v.Mark, tx.setMark(v, nil, c.At)
}

func (tx volumeWrites) setMark(v claim.Volume, mark *claim.Mark, at time.Time) error {
	before := volumeIndexKeys(&v)
	v.Mark, v.ModifyIndex, v.ModifiedAt = mark, tx.index, at
	tx.touch(TopicVolumes, TopicVolume(v.VolumeRef))
	return write(tx.writeTx, volumeKey(v.VolumeRef), &v, before, volumeIndexKeys(&v))
}

// MarkedVolumes lists the volumes that are marked.
func (tx *ReadTx) MarkedVolumes() ([]claim.Volume, error) {
	return indexed[claim.Volume](tx.reader, span{base: volumesMarked}, func(part string) string { return volumes + part })
}
