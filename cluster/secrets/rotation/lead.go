package rotation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/cluster/state"
)

// Lead does the leader's work until ctx ends: it makes a cluster's first key, finishes a rotation that another leader
// has begun, re-encrypts what old keys seal, and removes keys that are not needed any more.
func (k *Keeper) Lead(ctx context.Context) {
	told := ""
	k.again(ctx, longestPass, func(ctx context.Context) (done bool) {
		err := k.pass(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != told {
			told = err.Error()
			k.Log.Warn("the rotation of secrets keys is not finished: retrying", "error", err)
		}
		return err == nil
	})
}

// pass does everything that can be done now.
func (k *Keeper) pass(ctx context.Context) error {
	k.changing.Lock()
	defer k.changing.Unlock()
	keys, err := k.read(ctx)
	switch {
	case err != nil:
		return err
	case keys.Active == "" && k.Servers == nil:
		return nil
	case keys.Active == "":
		_, err := k.nameFirst(ctx)
		return err
	}
	if err := k.use(ctx, keys); err != nil {
		return err
	}
	if id := next(keys); id != "" {
		return k.activate(ctx, id)
	}
	if len(old(keys)) == 0 {
		return nil
	}
	resealed := k.resealAll(ctx, keys.Active)
	removed := k.removeOld(ctx, keys)
	return errors.Join(resealed, removed)
}

// removeOld removes the old keys that are no longer needed. The error names the keys that are still needed.
func (k *Keeper) removeOld(ctx context.Context, keys claim.SecretsKeys) error {
	needed, err := k.sealed(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range old(keys) {
		if needed[id] > 0 {
			errs = append(errs, fmt.Errorf("the secrets key %s is still needed", id))
			continue
		}
		if keys, err = cluster.Apply(ctx, k.Ledger, &command.PutSecretsKey{ID: id, Gone: true}); err != nil {
			return err
		}
		k.Log.Info("an old secrets key was removed", "key", id)
	}
	return errors.Join(append(errs, k.use(ctx, keys))...)
}

// resealAll re-encrypts with the active key everything that other keys encrypt. Values that cannot be
// decrypted stay as they are.
func (k *Keeper) resealAll(ctx context.Context, active string) error {
	volumes, signing, err := k.records(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, key := range signing {
		if with := secrets.KeyOf(key.Sealed); with != "" && with != active {
			errs = append(errs, k.resealSigningKey(ctx, key))
		}
	}
	for _, v := range volumes {
		if with := secrets.KeyOf(v.SealedSecrets); with == "" || with == active {
			continue
		}
		if err := k.reseal(ctx, v); ctx.Err() != nil {
			return err
		} else if err != nil {
			errs = append(errs, fmt.Errorf("volume %q: %w", v.VolumeRef, err))
		}
	}
	if len(errs) > maxTold {
		errs = append(errs[:maxTold], fmt.Errorf("and %d more", len(errs)-maxTold))
	}
	return errors.Join(errs...)
}

// maxTold is how many failed records an error names.
const maxTold = 5

// reseal re-encrypts one volume's secrets. If the volume was changed or removed meanwhile, the next pass handles it.
func (k *Keeper) reseal(ctx context.Context, v claim.Volume) error {
	sealed, with, err := k.Sealer.Reseal(v.SealedSecrets, secrets.ForVolume(v.Namespace, v.ID))
	if err != nil {
		return err
	}
	_, err = cluster.Apply(ctx, k.Ledger,
		&command.ResealVolume{Ref: v.VolumeRef, IfModifyIndex: v.ModifyIndex, SealedSecrets: sealed, KeyID: with})
	if errors.Is(err, claim.ErrConflict) || errors.Is(err, claim.ErrVolumeNotFound) {
		return nil
	}
	return err
}

func (k *Keeper) resealSigningKey(ctx context.Context, key claim.SigningKey) error {
	sealed, with, err := k.Sealer.Reseal(key.Sealed, k.SigningKey(key.ID))
	if err == nil {
		is := key
		is.Sealed, is.SecretsKey = sealed, with
		_, err = cluster.Apply(ctx, k.Ledger, &command.PutSigningKey{Key: is, IfSealed: key.Sealed})
	}
	if err != nil && !errors.Is(err, claim.ErrConflict) {
		return fmt.Errorf("signing key %s: %w", key.ID, err)
	}
	return nil
}

// records reads everything in the ledger that is sealed.
func (k *Keeper) records(ctx context.Context) (volumes []claim.Volume, signing []claim.SigningKey, err error) {
	err = k.Ledger.ReadLatest(ctx, func(tx *state.ReadTx) error {
		if signing, err = signingKeys(tx); err != nil {
			return err
		}
		volumes, _, err = tx.Volumes(state.VolumeQuery{})
		return err
	})
	return volumes, signing, err
}

func signingKeys(tx *state.ReadTx) ([]claim.SigningKey, error) {
	key, _, err := tx.SigningKey()
	if err != nil {
		return nil, err
	}
	rotation, _, err := tx.KeyRotation()
	return []claim.SigningKey{key, rotation.Key}, err
}

// sealed counts the sealed records by key. Volumes are read only when one has changed since the last time.
func (k *Keeper) sealed(ctx context.Context) (map[string]int, error) {
	k.counting.Lock()
	defer k.counting.Unlock()
	var count map[string]int
	before := k.Ledger.ChangedAt(state.TopicVolumes) // so that what is counted is at least as new
	err := k.Ledger.ReadLatest(ctx, func(tx *state.ReadTx) error {
		if k.volumes == nil || k.Ledger.ChangedAt(state.TopicVolumes) != k.volumesAt {
			volumes, _, err := tx.Volumes(state.VolumeQuery{})
			if err != nil {
				return err
			}
			k.volumes, k.volumesAt = map[string]int{}, before
			for _, v := range volumes {
				if with := secrets.KeyOf(v.SealedSecrets); with != "" {
					k.volumes[with]++
				}
			}
		}
		signing, err := signingKeys(tx)
		count = maps.Clone(k.volumes)
		for _, key := range signing {
			if with := secrets.KeyOf(key.Sealed); with != "" {
				count[with]++
			}
		}
		return err
	})
	return count, err
}

// Status is the state of the keys.
type Status struct {
	// Active is the key that seals; empty: none yet.
	Active string
	Keys   []KeyStatus // the oldest first
	// Problem explains why this server cannot unseal all secrets; empty: it can.
	Problem string
}

// KeyStatus is the state of one key.
type KeyStatus struct {
	ID string
	// AddedAt is when it was added to the ledger; zero: it is not in it.
	AddedAt time.Time
	// Sealed is the number of volumes, and signing keys, that need it.
	Sealed int
	// Here is true if this server has it.
	Here bool
}

// Status reads the state of the keys, on the leader.
func (k *Keeper) Status(ctx context.Context) (Status, error) {
	keys, err := k.read(ctx)
	if err != nil {
		return Status{}, err
	}
	count, err := k.sealed(ctx)
	if err != nil {
		return Status{}, err
	}
	s := Status{Active: keys.Active, Problem: k.Problem()}
	if s.Active == "" && k.Servers == nil {
		s.Active = k.Sealer.KeyID()
		keys.Keys = []claim.SecretsKey{{ID: s.Active}}
	}
	for _, key := range keys.Keys {
		_, here := k.Sealer.Get(key.ID)
		s.Keys = append(s.Keys, KeyStatus{ID: key.ID, AddedAt: key.AddedAt, Sealed: count[key.ID], Here: here})
	}
	return s, nil
}
