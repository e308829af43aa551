package command

import "github.com/pannier/pannier/cluster/claim"

// PutSecretsKey records that servers have a key that seals secrets, or that one is gone. The
// key itself is never in the ledger.
type PutSecretsKey struct {
	Stamp
	ID string `json:"id"`
	// Active makes it the one that seals from now on.
	Active bool `json:"active,omitempty"`
	// Gone forgets a key that is not active (claim.ErrConflict).
	Gone bool `json:"gone,omitempty"`
}

// PutSecretsKeyResult answers PutSecretsKey with the keys as they are now.
type PutSecretsKeyResult struct {
	Keys claim.SecretsKeys
}

// ResealVolume replaces a volume's sealed secrets by the same ones under another key. It is
// claim.ErrConflict where the volume is not the one that was read.
type ResealVolume struct {
	Stamp
	Ref           claim.VolumeRef `json:"ref"`
	IfModifyIndex uint64          `json:"if_modify_index"`
	SealedSecrets []byte          `json:"sealed_secrets"`
	KeyID         string          `json:"key_id"`
}

// ResealVolumeResult answers ResealVolume.
type ResealVolumeResult struct {
	Volume claim.Volume
}
