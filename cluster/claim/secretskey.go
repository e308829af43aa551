package claim

import (
	"fmt"
	"slices"
	"time"
)

// SecretsKeys says which keys seal the secrets in the ledger. The keys themselves are on the
// servers.
type SecretsKeys struct {
	Active string       `json:"active,omitempty"` // the id of the one that seals now; empty: none was named yet
	Keys   []SecretsKey `json:"keys,omitempty"`   // the oldest first
	// Removed are the ids of the keys that were forgotten last, at most MaxSecretsKeys: servers
	// that were away meanwhile forget them too.
	Removed []string `json:"removed,omitempty"`
}

// SecretsKey is one key's name.
type SecretsKey struct {
	ID      string    `json:"id"`
	AddedAt time.Time `json:"added_at"`
}

// MaxSecretsKeys bounds the keys that the ledger names.
const MaxSecretsKeys = 16

// Put adds a key, or makes one that is there active. The error is a *FieldError.
func (k *SecretsKeys) Put(id string, active bool, at time.Time) error {
	c := checker{object: fmt.Sprintf("secrets key %q", id)}
	c.id("id", id)
	there := slices.ContainsFunc(k.Keys, func(have SecretsKey) bool { return have.ID == id })
	if !there && len(k.Keys) >= MaxSecretsKeys {
		c.fail("id", fmt.Sprintf("would be one of more than %d: seal all volumes with the active key and remove old ones first", MaxSecretsKeys))
	}
	if c.err != nil {
		return c.err
	}
	if !there {
		k.Keys = append(slices.Clone(k.Keys), SecretsKey{id, at})
		k.Removed = slices.DeleteFunc(slices.Clone(k.Removed), func(gone string) bool { return gone == id })
	}
	if active {
		k.Active = id
	}
	return nil
}

// Remove forgets a key. One that is not there is no error; the active one is ErrConflict.
func (k *SecretsKeys) Remove(id string) error {
	if id == k.Active && id != "" {
		return fmt.Errorf("secrets key %q seals what comes, so it cannot be removed: %w", id, ErrConflict)
	}
	left := slices.DeleteFunc(slices.Clone(k.Keys), func(have SecretsKey) bool { return have.ID == id })
	if len(left) == len(k.Keys) {
		return nil
	}
	removed := append(slices.Clone(k.Removed), id)
	k.Keys, k.Removed = left, removed[max(len(removed)-MaxSecretsKeys, 0):]
	return nil
}

// CheckSealed refuses what was sealed with another key than the one that seals now, so that
// a key that was needed by nothing is never needed again. The error is ErrOldKey.
func (k *SecretsKeys) CheckSealed(with string) error {
	if k.Active == "" || with == k.Active {
		return nil
	}
	return fmt.Errorf("%w: %q, and %q seals now", ErrOldKey, with, k.Active)
}
