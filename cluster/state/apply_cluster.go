package state

import (
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// Liveness reads what the leader promised nodes; found is false while it promised nothing.
func (tx *ReadTx) Liveness() (l claim.Liveness, found bool, err error) {
	return read[claim.Liveness](tx, liveness)
}

// Autopilot reads how the leader looks after the servers; found is false while no operator said.
func (tx *ReadTx) Autopilot() (a claim.Autopilot, found bool, err error) {
	return read[claim.Autopilot](tx, autopilot)
}

// SecretsKeys reads which keys seal the secrets in the ledger; empty: none was named.
func (tx *ReadTx) SecretsKeys() (claim.SecretsKeys, error) {
	k, _, err := read[claim.SecretsKeys](tx, secretsKeys)
	return k, err
}

// PutLiveness writes nothing where nothing else is promised than before.
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
