package state

import (
	"bytes"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// Liveness reads the lease that was promised to nodes; found is false if none was promised yet.
func (tx Settings) Liveness() (l claim.Liveness, found bool, err error) {
	return read[claim.Liveness](tx.reader, liveness)
}

// Autopilot reads how the leader manages the servers; found is false if no operator has set it.
func (tx Settings) Autopilot() (a claim.Autopilot, found bool, err error) {
	return read[claim.Autopilot](tx.reader, autopilot)
}

// SecretsKeys reads which keys encrypt the secrets in the ledger; empty: none was named yet.
func (tx Settings) SecretsKeys() (claim.SecretsKeys, error) {
	k, _, err := read[claim.SecretsKeys](tx.reader, secretsKeys)
	return k, err
}

// PutLiveness writes nothing if the promise is unchanged.
func (tx settingWrites) PutLiveness(c *command.PutLiveness) (zero claim.Liveness, _ error) {
	if err := c.Liveness.Validate(); err != nil {
		return zero, err
	}
	before, found, err := tx.Liveness()
	if err != nil {
		return zero, err
	}
	if found && before == c.Liveness {
		return before, nil
	}
	tx.touch(TopicLiveness)
	return before, write(tx.writeTx, liveness, &c.Liveness, nil, nil)
}

func (tx settingWrites) SetAutopilot(c *command.SetAutopilot) (zero claim.Autopilot, _ error) {
	before, found, err := tx.Autopilot()
	if err != nil {
		return zero, err
	}
	if !found {
		before = c.First
	}
	after, err := before.Change(c.Change)
	if err != nil {
		return zero, err
	}
	err = write(tx.writeTx, autopilot, &after, nil, nil)
	return after, err
}

func (tx settingWrites) PutSecretsKey(c *command.PutSecretsKey) (zero claim.SecretsKeys, _ error) {
	keys, err := tx.SecretsKeys()
	if err != nil {
		return zero, err
	}
	if c.Gone {
		err = keys.Remove(c.ID)
	} else {
		err = keys.Put(c.ID, c.Active, c.At)
	}
	if err != nil {
		return zero, err
	}
	tx.touch(TopicSecretsKeys)
	err = write(tx.writeTx, secretsKeys, &keys, nil, nil)
	return keys, err
}

// Identify keeps the first identity that the cluster was given.
func (tx settingWrites) Identify(c *command.Identify) (zero claim.Cluster, _ error) {
	if err := c.Cluster.Validate(); err != nil {
		return zero, err
	}
	standing, found, err := read[claim.Cluster](tx.reader, identity)
	if err != nil || found {
		return standing, err
	}
	c.Cluster.CreatedAt = c.At
	tx.touch(TopicCluster)
	return c.Cluster, write(tx.writeTx, identity, &c.Cluster, nil, nil)
}

// PutSigningKey keeps the first key that the cluster was given. A caller that has read it, or that of a rotation, may
// re-encrypt it.
func (tx settingWrites) PutSigningKey(c *command.PutSigningKey) (zero claim.SigningKey, _ error) {
	if err := c.Key.Validate(); err != nil {
		return zero, err
	}
	standing, found, err := tx.SigningKey()
	if err != nil {
		return zero, err
	}
	rotation, rotates, err := tx.KeyRotation()
	if err != nil {
		return zero, err
	}
	if rotates && len(c.IfSealed) > 0 && c.Key.ID == rotation.Key.ID {
		if err := tx.reseal(&rotation.Key, c); err != nil {
			return zero, err
		}
		return rotation.Key, write(tx.writeTx, keyRotation, &rotation, nil, nil)
	}
	reseal := found && len(c.IfSealed) > 0 && c.Key.ID == standing.ID
	if found && !reseal {
		return standing, nil
	}
	if reseal {
		if err := tx.reseal(&standing, c); err != nil {
			return zero, err
		}
		err = write(tx.writeTx, signingKey, &standing, nil, nil)
		return standing, err
	}
	if err := tx.checkSealedKey(&c.Key); err != nil {
		return zero, err
	}
	c.Key.CreatedAt = c.At
	tx.touch(TopicSigningKey)
	return c.Key, write(tx.writeTx, signingKey, &c.Key, nil, nil)
}

// reseal replaces the encrypted part of a standing key.
func (tx settingWrites) reseal(standing *claim.SigningKey, c *command.PutSigningKey) error {
	if !bytes.Equal(c.IfSealed, standing.Sealed) {
		return claim.Conflict("the signing key %q was re-encrypted since it was read", c.Key.ID)
	}
	standing.Sealed, standing.SecretsKey = c.Key.Sealed, c.Key.SecretsKey
	return tx.checkSealedKey(standing)
}

func (tx settingWrites) checkSealedKey(k *claim.SigningKey) error {
	keys, err := tx.SecretsKeys()
	if err != nil {
		return err
	}
	if err := keys.CheckSealed(k.SecretsKey); err != nil {
		return fmt.Errorf("the signing key %q: %w", k.ID, err)
	}
	return nil
}

// RotateSigningKey begins a rotation unless one is under way.
func (tx settingWrites) RotateSigningKey(c *command.RotateSigningKey) (zero claim.KeyRotation, _ error) {
	if err := c.Next.Validate(); err != nil {
		return zero, err
	}
	rotation, rotates, err := tx.KeyRotation()
	if err != nil || rotates {
		return rotation, err
	}
	standing, found, err := tx.SigningKey()
	switch {
	case err != nil:
		return zero, err
	case !found || standing.ID == c.Next.ID:
		return zero, claim.Conflict("the signing key %q cannot be replaced by %q", standing.ID, c.Next.ID)
	}
	if err := tx.checkSealedKey(&c.Next); err != nil {
		return zero, err
	}
	rotation = claim.KeyRotation{Phase: claim.KeyPublished, Key: c.Next, Since: c.At}
	rotation.Key.CreatedAt = c.At
	tx.touch(TopicSigningKey)
	err = write(tx.writeTx, keyRotation, &rotation, nil, nil)
	return rotation, err
}

// AdvanceKeyRotation ends a phase of the rotation.
func (tx settingWrites) AdvanceKeyRotation(c *command.AdvanceKeyRotation) (zero claim.KeyRotation, _ error) {
	rotation, rotates, err := tx.KeyRotation()
	if err != nil {
		return zero, err
	}
	if !rotates || rotation.Key.ID != c.Key || rotation.Phase != c.Phase {
		return zero, claim.Conflict("the rotation of the signing key is not in the phase %q of the key %q", c.Phase, c.Key)
	}
	tx.touch(TopicSigningKey)
	rotation.Since = c.At
	switch c.Phase {
	case claim.KeyPublished:
		standing, _, err := tx.SigningKey()
		if err != nil {
			return zero, err
		}
		standing, rotation.Key = rotation.Key, standing
		rotation.Phase = claim.KeyReplaced
		if err := write(tx.writeTx, signingKey, &standing, nil, nil); err != nil {
			return zero, err
		}
	case claim.KeyReplaced:
		rotation.Phase = claim.KeyWithdrawn
	default:
		tx.delete(keyRotation)
		return claim.KeyRotation{}, nil
	}
	err = write(tx.writeTx, keyRotation, &rotation, nil, nil)
	return rotation, err
}
