package state

import (
	"bytes"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// Liveness reads the lease that was promised to nodes; found is false if none was promised yet.
func (tx *ReadTx) Liveness() (l claim.Liveness, found bool, err error) {
	return read[claim.Liveness](tx, liveness)
}

// Autopilot reads how the leader manages the servers; found is false if no operator has set it.
func (tx *ReadTx) Autopilot() (a claim.Autopilot, found bool, err error) {
	return read[claim.Autopilot](tx, autopilot)
}

// SecretsKeys reads which keys encrypt the secrets in the ledger; empty: none was named yet.
func (tx *ReadTx) SecretsKeys() (claim.SecretsKeys, error) {
	k, _, err := read[claim.SecretsKeys](tx, secretsKeys)
	return k, err
}

// PutLiveness writes nothing if the promise is unchanged.
func (tx *writeTx) PutLiveness(c *command.PutLiveness) (any, error) {
	if err := c.Liveness.Validate(); err != nil {
		return nil, err
	}
	before, found, err := tx.Liveness()
	if err != nil {
		return nil, err
	}
	result := command.PutLivenessResult{Before: before}
	if found && before == c.Liveness {
		return result, nil
	}
	tx.touch(TopicLiveness)
	return result, write(tx, liveness, &c.Liveness, nil, nil)
}

func (tx *writeTx) SetAutopilot(c *command.SetAutopilot) (any, error) {
	before, found, err := tx.Autopilot()
	if err != nil {
		return nil, err
	}
	if !found {
		before = c.First
	}
	after, err := before.Change(c.Change)
	if err != nil {
		return nil, err
	}
	return command.SetAutopilotResult{Autopilot: after}, write(tx, autopilot, &after, nil, nil)
}

func (tx *writeTx) PutSecretsKey(c *command.PutSecretsKey) (any, error) {
	keys, err := tx.SecretsKeys()
	if err != nil {
		return nil, err
	}
	if c.Gone {
		err = keys.Remove(c.ID)
	} else {
		err = keys.Put(c.ID, c.Active, c.At)
	}
	if err != nil {
		return nil, err
	}
	tx.touch(TopicSecretsKeys)
	return command.PutSecretsKeyResult{Keys: keys}, write(tx, secretsKeys, &keys, nil, nil)
}

// Identify keeps the first identity that the cluster was given.
func (tx *writeTx) Identify(c *command.Identify) (any, error) {
	if err := c.Cluster.Validate(); err != nil {
		return nil, err
	}
	standing, found, err := read[claim.Cluster](&tx.ReadTx, identity)
	if err != nil || found {
		return command.IdentifyResult{Cluster: standing}, err
	}
	c.Cluster.CreatedAt = c.At
	tx.touch(TopicCluster)
	return command.IdentifyResult{Cluster: c.Cluster}, write(tx, identity, &c.Cluster, nil, nil)
}

// PutSigningKey keeps the first key that the cluster was given. A caller that has read it may re-encrypt it.
func (tx *writeTx) PutSigningKey(c *command.PutSigningKey) (any, error) {
	if err := c.Key.Validate(); err != nil {
		return nil, err
	}
	standing, found, err := tx.SigningKey()
	reseal := found && len(c.IfSealed) > 0 && c.Key.ID == standing.ID
	if err != nil || found && !reseal {
		return command.PutSigningKeyResult{Key: standing}, err
	}
	if reseal && !bytes.Equal(c.IfSealed, standing.Sealed) {
		return nil, fmt.Errorf("the signing key %q was re-encrypted since it was read: %w", c.Key.ID, claim.ErrConflict)
	}
	keys, err := tx.SecretsKeys()
	if err != nil {
		return nil, err
	}
	if err := keys.CheckSealed(c.Key.SecretsKey); err != nil {
		return nil, fmt.Errorf("the signing key %q: %w", c.Key.ID, err)
	}
	c.Key.CreatedAt = c.At
	if reseal {
		sealed, with := c.Key.Sealed, c.Key.SecretsKey
		c.Key = standing
		c.Key.Sealed, c.Key.SecretsKey = sealed, with
	}
	return command.PutSigningKeyResult{Key: c.Key}, write(tx, signingKey, &c.Key, nil, nil)
}
