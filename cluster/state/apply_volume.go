package state

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

func (tx volumeWrites) RegisterVolume(c *command.RegisterVolume) (zero command.RegisterVolumeResult, _ error) {
	next := c.Volume
	if err := next.Validate(); err != nil {
		return zero, err
	}
	if next.Name == "" {
		next.Name = next.ID
	}
	next.CreateIndex, next.CreatedAt, next.Mark = tx.index, c.At, nil
	old, err := tx.Volume(next.VolumeRef)
	created := errors.Is(err, claim.ErrVolumeNotFound)
	var before []string
	switch {
	case c.Mark != 0 && (created || err == nil && (old.Mark == nil || old.Mark.Index != c.Mark)):
		return zero, claim.Conflict("volume %q: its mark of index %d has ended, or was taken by another call", next.VolumeRef,
			c.Mark)
	case created:
	case err != nil:
		return zero, err
	default:
		held, err := tx.Claims(next.VolumeRef)
		if err != nil {
			return zero, err
		}
		if err := claim.CheckUpdate(old, next, held, c.At); err != nil {
			return zero, err
		}
		if old.Mark != nil && c.Mark == 0 {
			return zero, old.Mark.Refuse(old.VolumeRef, "", c.At)
		}
		next.CreateIndex, next.CreatedAt = old.CreateIndex, old.CreatedAt
		next.Grown = next.Grown || old.Grown
		before = volumeIndexKeys(&old)
	}
	if err := tx.checkSealed(old, next); err != nil {
		return zero, err
	}
	if err := tx.checkDistinct(&next); err != nil {
		return zero, err
	}
	next.ModifyIndex, next.ModifiedAt = tx.index, c.At
	next.AccessMode, next.AttachmentMode = "", "" // derived from the claims, not stored
	if err := write(tx.writeTx, volumeKey(next.VolumeRef), &next, before, volumeIndexKeys(&next)); err != nil {
		return zero, err
	}
	next.AccessMode, next.AttachmentMode = old.AccessMode, old.AttachmentMode
	tx.touch(TopicVolumes, TopicVolume(next.VolumeRef))
	return command.RegisterVolumeResult{Volume: next, Created: created}, nil
}

// checkSealed accepts new secrets only if they are encrypted with the active key. Unchanged secrets may stay as
// they are.
func (tx volumeWrites) checkSealed(old, next claim.Volume) error {
	if len(next.SealedSecrets) == 0 || bytes.Equal(next.SealedSecrets, old.SealedSecrets) {
		return nil
	}
	keys, err := tx.SecretsKeys()
	if err != nil {
		return err
	}
	if err := keys.CheckSealed(next.SecretsKey); err != nil {
		return fmt.Errorf("the secrets of volume %q: %w", next.VolumeRef, err)
	}
	return nil
}

// checkDistinct refuses a volume if another one has its driver and external id: each would have claims of its own, and
// so the driver's volume two writers.
func (tx volumeWrites) checkDistinct(v *claim.Volume) error {
	same, err := tx.VolumesByExternalID(v.PluginID, v.ExternalID)
	if err != nil {
		return err
	}
	for _, other := range same {
		if other != v.VolumeRef {
			return fmt.Errorf("volume %q: external_id %q of driver %q %w, %q: use that one, or deregister it first", v.VolumeRef,
				v.ExternalID, v.PluginID, claim.ErrDuplicate, other)
		}
	}
	return nil
}

func (tx volumeWrites) DeregisterVolume(c *command.DeregisterVolume) (zero command.DeregisterVolumeResult, _ error) {
	if err := c.Ref.Validate(); err != nil {
		return zero, err
	}
	v, err := tx.Volume(c.Ref)
	if err != nil {
		return zero, err
	}
	if c.Deleted != 0 && c.Deleted != v.CreateIndex {
		return zero, claim.Conflict("volume %q was made anew at index %d", c.Ref, v.CreateIndex)
	}
	held, err := tx.someClaims(c.Ref, command.MaxItems+1)
	if err != nil {
		return zero, err
	}
	if len(held) > 0 && !c.Force {
		return zero, &claim.Refusal{
			Reason: claim.ErrVolumeInUse, Volume: c.Ref, Detail: "cannot be deregistered while it is claimed",
			Holders: held, At: c.At,
		}
	}
	if v.Mark != nil && !c.Force && (c.Deleted == 0 || v.Mark.Act != claim.Deleting) {
		return zero, v.Mark.Refuse(c.Ref, "", c.At)
	}
	more := len(held) > command.MaxItems
	held = held[:min(len(held), command.MaxItems)]
	for i := range held {
		if err := tx.freeClaim(&held[i]); err != nil {
			return zero, err
		}
	}
	if !more {
		if err := write(tx.writeTx, volumeKey(c.Ref), (*claim.Volume)(nil), volumeIndexKeys(&v), nil); err != nil {
			return zero, err
		}
		tx.touch(TopicVolumes, TopicVolume(c.Ref))
	}
	return command.DeregisterVolumeResult{Volume: v, LeftBehind: held, More: more}, nil
}

// ResealVolume changes only the encryption of the volume's secrets.
func (tx volumeWrites) ResealVolume(c *command.ResealVolume) (zero claim.Volume, _ error) {
	if err := c.Ref.Validate(); err != nil {
		return zero, err
	}
	if err := claim.CheckID(c.KeyID); err != nil {
		return zero, &claim.FieldError{Object: fmt.Sprintf("volume %q", c.Ref), Field: "key_id", Problem: err.Error()}
	}
	v, err := tx.Volume(c.Ref)
	if err != nil {
		return zero, err
	}
	if v.ModifyIndex != c.IfModifyIndex {
		return zero, claim.Conflict("volume %q has changed at index %d, after it was read at %d", c.Ref, v.ModifyIndex,
			c.IfModifyIndex)
	}
	before := v
	v.SealedSecrets, v.SecretsKey, v.ModifyIndex, v.ModifiedAt = c.SealedSecrets, c.KeyID, tx.index, c.At
	if err := tx.checkSealed(before, v); err != nil {
		return zero, err
	}
	stored := v
	stored.AccessMode, stored.AttachmentMode = "", "" // derived from the claims, not stored
	if err := write(tx.writeTx, volumeKey(c.Ref), &stored, nil, nil); err != nil {
		return zero, err
	}
	tx.touch(TopicVolumes, TopicVolume(c.Ref))
	return v, nil
}
