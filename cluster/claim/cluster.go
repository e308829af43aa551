package claim

import (
	"fmt"
	"slices"
	"time"
)

// Cluster is the identity of one ledger. It is part of names in what several ledgers share, such as the volumes of
// one storage system.
type Cluster struct {
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"created_at"`
}

// Validate checks the id. The error is a *FieldError.
func (c *Cluster) Validate() error {
	check := checker{object: func() string { return "cluster" }}
	check.id("id", c.ID)
	return check.err
}

// MaxServers bounds the servers of a cluster, and with them bootstrap_expect and min_quorum.
const MaxServers = 15

// Autopilot has the settings by which the leader manages the servers.
type Autopilot struct {
	// CleanupDeadServers removes dead servers from raft, as long as MinQuorum servers remain, and never half of
	// them at once.
	CleanupDeadServers bool `json:"cleanup_dead_servers"`
	// LastContactThreshold is the longest time for which a healthy server may be without a leader.
	LastContactThreshold time.Duration `json:"last_contact_threshold"`
	// MaxTrailingLogs is the number of entries by which a healthy server may lag.
	MaxTrailingLogs uint64 `json:"max_trailing_logs"`
	// MinQuorum is the number of voters that cleaning up always leaves; 0: as many as formed the cluster.
	MinQuorum int `json:"min_quorum"`
	// ServerStabilizationTime is how long a server must be healthy before it gets a vote.
	ServerStabilizationTime time.Duration `json:"server_stabilization_time"`
}

// DefaultAutopilot returns the settings that apply until an operator changes them.
func DefaultAutopilot() Autopilot {
	return Autopilot{
		CleanupDeadServers: true, LastContactThreshold: 2 * time.Second, MaxTrailingLogs: 2000,
		ServerStabilizationTime: 10 * time.Second,
	}
}

// Validate checks the bounds of each setting. The error is a *FieldError.
func (a *Autopilot) Validate() error {
	c := checker{object: func() string { return "autopilot" }}
	if a.LastContactThreshold <= 0 {
		c.fail("last_contact_threshold", fmt.Sprintf("(%s) must be above 0", a.LastContactThreshold))
	}
	if a.ServerStabilizationTime <= 0 {
		c.fail("server_stabilization_time", fmt.Sprintf("(%s) must be above 0", a.ServerStabilizationTime))
	}
	if a.MinQuorum < 0 || a.MinQuorum > MaxServers {
		c.fail("min_quorum", fmt.Sprintf("(%d) must be 0 to %d", a.MinQuorum, MaxServers))
	}
	return c.err
}

// AutopilotChange is a change of the settings; nil fields stay as they are.
type AutopilotChange struct {
	CleanupDeadServers      *bool          `json:"cleanup_dead_servers,omitempty"`
	LastContactThreshold    *time.Duration `json:"last_contact_threshold,omitempty"`
	ServerStabilizationTime *time.Duration `json:"server_stabilization_time,omitempty"`
	MinQuorum               *int           `json:"min_quorum,omitempty"`
}

// Change returns the settings after a change. The error is a *FieldError.
func (a Autopilot) Change(by AutopilotChange) (Autopilot, error) {
	put(&a.CleanupDeadServers, by.CleanupDeadServers)
	put(&a.LastContactThreshold, by.LastContactThreshold)
	put(&a.ServerStabilizationTime, by.ServerStabilizationTime)
	put(&a.MinQuorum, by.MinQuorum)
	err := a.Validate()
	return a, err
}

func put[T any](dst, value *T) {
	if value != nil {
		*dst = *value
	}
}

// SecretsKeys lists the keys that encrypt the secrets in the ledger. The keys themselves are on the servers.
type SecretsKeys struct {
	Active string       `json:"active,omitempty"` // the id of the key that encrypts now; empty: none was named yet
	Keys   []SecretsKey `json:"keys,omitempty"`   // oldest first
	// Removed are the ids of the keys that were removed last, at most MaxSecretsKeys: servers that were down at
	// the time remove them later.
	Removed []string `json:"removed,omitempty"`
}

// SecretsKey is the name of one key.
type SecretsKey struct {
	ID      string    `json:"id"`
	AddedAt time.Time `json:"added_at"`
}

// MaxSecretsKeys bounds the keys that the ledger names.
const MaxSecretsKeys = 16

// Put adds a key, or activates an existing one. The error is a *FieldError.
func (k *SecretsKeys) Put(id string, active bool, at time.Time) error {
	c := checker{object: func() string { return fmt.Sprintf("secrets key %q", id) }}
	c.id("id", id)
	there := slices.ContainsFunc(k.Keys, func(have SecretsKey) bool { return have.ID == id })
	if !there && len(k.Keys) >= MaxSecretsKeys {
		c.fail("id", fmt.Sprintf("is one too many (at most %d): "+
			"re-encrypt all volumes with the active key and remove old keys first", MaxSecretsKeys))
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

// Remove removes a key. An unknown key is no error; the active one is ErrConflict.
func (k *SecretsKeys) Remove(id string) error {
	if id == k.Active && id != "" {
		return Conflict("secrets key %q is the active one, so it cannot be removed", id)
	}
	left := slices.DeleteFunc(slices.Clone(k.Keys), func(have SecretsKey) bool { return have.ID == id })
	if len(left) == len(k.Keys) {
		return nil
	}
	removed := append(slices.Clone(k.Removed), id)
	k.Keys, k.Removed = left, removed[max(len(removed)-MaxSecretsKeys, 0):]
	return nil
}

// CheckSealed refuses secrets that are encrypted with a key other than the active one, so that a key that nothing
// needs any more is never needed again. The error is ErrOldKey.
func (k *SecretsKeys) CheckSealed(with string) error {
	if k.Active == "" || with == k.Active {
		return nil
	}
	return fmt.Errorf("%w: %q; the active key is %q", ErrOldKey, with, k.Active)
}

// Liveness is the lease that the cluster has promised its nodes: how long after the last answered heartbeat a
// node keeps its claims. A new leader keeps the promise of the leader before it.
type Liveness struct {
	// HeartbeatTTL is how long after its last heartbeat a node counts as connected.
	HeartbeatTTL time.Duration `json:"heartbeat_ttl"`
	// StopAfter is how long after the last answered heartbeat a node begins to stop its workloads.
	StopAfter time.Duration `json:"stop_after"`
	// Margin is how much later than StopAfter the leader releases the node's claims.
	Margin time.Duration `json:"margin"`
}

// Validate checks the order of the times. The error is a *FieldError.
func (l *Liveness) Validate() error {
	c := checker{object: func() string { return "server" }}
	if l.HeartbeatTTL <= 0 {
		c.fail("heartbeat_ttl", fmt.Sprintf("(%s) must be above 0", l.HeartbeatTTL))
	}
	if l.StopAfter < l.HeartbeatTTL {
		c.fail("stop_after", fmt.Sprintf("(%s) must not be below heartbeat_ttl (%s)", l.StopAfter, l.HeartbeatTTL))
	}
	if l.Margin <= 0 {
		c.fail("stop_margin", fmt.Sprintf("(%s) must be above 0", l.Margin))
	}
	return c.err
}

// SigningKey signs the identities of the cluster's workloads. There is one, which KeyRotation replaces.
type SigningKey struct {
	// ID is the key id in the signed tokens.
	ID string `json:"id"`
	// Public is the public key as a JSON Web Key (RFC 7517).
	Public []byte `json:"public"`
	// Sealed is the private key, encrypted before it reaches the ledger with the key SecretsKey; empty: with a key
	// that the ledger did not name yet.
	Sealed     []byte    `json:"sealed"`
	SecretsKey string    `json:"secrets_key,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
}

// maxKey bounds each part of a signing key, in bytes.
const maxKey = 4 << 10

// Validate checks that nothing is missing. The error is a *FieldError.
func (k *SigningKey) Validate() error {
	c := checker{object: func() string { return fmt.Sprintf("signing key %q", k.ID) }}
	c.id("id", k.ID)
	for _, part := range []struct {
		field string
		size  int
	}{{"public", len(k.Public)}, {"sealed", len(k.Sealed)}} {
		if part.size == 0 || part.size > maxKey {
			c.fail(part.field, fmt.Sprintf("has %d bytes: 1 to %d are allowed", part.size, maxKey))
		}
	}
	return c.err
}

// KeyRotation is a change of the signing key that has begun and not ended.
type KeyRotation struct {
	Phase RotationPhase `json:"phase"`
	// Key is the next signing key while it is published, then the previous one.
	Key SigningKey `json:"key"`
	// Since is when the phase began.
	Since time.Time `json:"since"`
}

// RotationPhase is how far a rotation has come.
type RotationPhase string

// The phases of a rotation, in this order.
const (
	// KeyPublished: the next key is published and does not sign yet.
	KeyPublished RotationPhase = "published"
	// KeyReplaced: the next key signs. The previous one is published for the JWTs that it has signed.
	KeyReplaced RotationPhase = "replaced"
	// KeyWithdrawn: the previous key is no longer published. Verifiers may still accept it.
	KeyWithdrawn RotationPhase = "withdrawn"
)

// Published reports whether the rotation's key is published beside the signing key.
func (r *KeyRotation) Published() bool { return r.Phase == KeyPublished || r.Phase == KeyReplaced }
