package rotation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/cluster/state"
)

// Ledger is what a Keeper needs of cluster.Node.
type Ledger interface {
	cluster.Ledger
	Read(ctx context.Context, fn func(tx *state.ReadTx) error) error
	ReadLatest(ctx context.Context, fn func(tx *state.ReadTx) error) error
	ChangedAt(topics ...state.Topic) uint64
	Watch(ctx context.Context, topics ...state.Topic) <-chan struct{}
	// Servers lists all servers in raft's configuration, including this one.
	Servers() ([]string, error)
}

// Servers makes calls to the other servers (peer.Servers).
type Servers interface {
	// SecretsKeys asks them for keys by their ids. The error names the servers that did not answer.
	SecretsKeys(ctx context.Context, ids ...string) ([]secrets.Key, error)
	// OfferSecretsKey sends a key to one of them, which has it on disk when the error is nil.
	OfferSecretsKey(ctx context.Context, server string, key secrets.Key) error
}

// Config configures a Keeper.
type Config struct {
	// Name is this server's.
	Name   string
	Sealer *secrets.Sealer
	Ledger Ledger
	// Servers makes calls to the other servers; nil: this host is standalone.
	Servers Servers
	// SigningKey returns the additional data that binds a sealed signing key to its id.
	SigningKey func(id string) []byte
	Log        hclog.Logger
}

// Keeper manages this server's keys. It is safe for concurrent use.
type Keeper struct {
	Config

	changing sync.Mutex // held while keys are changed

	mu      sync.Mutex
	problem string

	counting  sync.Mutex
	volumes   map[string]int // how many volumes have secrets that a key seals, by the key
	volumesAt uint64         // no volume had changed since this index when they were counted
}

// New makes a Keeper.
func New(cfg Config) *Keeper {
	k := &Keeper{Config: cfg}
	if cfg.Servers != nil {
		k.problem = "it is not known yet which keys seal secrets"
	}
	return k
}

// The pause after a failure grows from the first to the longest.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
	longestPass  = time.Minute // for the leader, which reads all volumes
)

// Problem explains why this server cannot seal, or cannot unseal all, secrets; empty: it can.
func (k *Keeper) Problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.problem
}

func (k *Keeper) note(problem string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.problem != problem && problem != "" {
		k.Log.Info("this server cannot seal secrets, or not unseal all", "problem", problem)
	}
	k.problem = problem
}

// Follow keeps this server's keys up to date with the ledger, until ctx ends.
func (k *Keeper) Follow(ctx context.Context) {
	k.again(ctx, longestPause, func(ctx context.Context) (done bool) {
		err := k.Sync(ctx)
		if ctx.Err() == nil {
			k.note(text(err))
		}
		return err == nil
	})
}

// again calls fn after each change of the keys in the ledger, and until it succeeds.
func (k *Keeper) again(ctx context.Context, longest time.Duration, fn func(ctx context.Context) (done bool)) {
	pause := firstPause
	for ctx.Err() == nil {
		watching, stop := context.WithCancel(ctx)
		changed := k.Ledger.Watch(watching, state.TopicSecretsKeys)
		var retry <-chan time.Time
		if fn(ctx) {
			pause = firstPause
		} else {
			retry = time.After(pause)
			pause = min(2*pause, longest)
		}
		select {
		case <-changed:
		case <-retry:
		case <-ctx.Done():
		}
		stop()
	}
}

// Sync brings this server's keys up to date with the ledger once. The error names the key that could not be obtained.
func (k *Keeper) Sync(ctx context.Context) error {
	var keys claim.SecretsKeys
	err := k.Ledger.Read(ctx, func(tx *state.ReadTx) (err error) {
		keys, err = tx.SecretsKeys()
		return err
	})
	if err != nil {
		return err
	}
	if keys.Active == "" && k.Servers != nil {
		return errors.New(
			"the cluster has no secrets key yet: the leader makes one as soon as a majority of the servers is up")
	}
	return k.use(ctx, keys)
}

// use applies the ledger's list of keys, and requests missing keys from the other servers.
func (k *Keeper) use(ctx context.Context, keys claim.SecretsKeys) error {
	missing, err := k.Sealer.Use(keys.Active, ids(keys), keys.Removed)
	if err != nil || len(missing) == 0 {
		return err
	}
	asked := k.fetch(ctx, missing...)
	if missing, err = k.Sealer.Use(keys.Active, ids(keys), keys.Removed); err != nil || len(missing) == 0 {
		return err
	}
	return fmt.Errorf(
		"no server that was asked has the secrets key %s: restore its file from a backup of a server's secrets.keys, "+
			"or register again what it seals (see: pannier operator secrets status)%s", strings.Join(missing,
			", "), because(asked))
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// fetch asks the other servers for keys.
func (k *Keeper) fetch(ctx context.Context, missing ...string) error {
	if k.Servers == nil {
		return nil
	}
	found, err := k.Servers.SecretsKeys(ctx, missing...)
	for _, key := range found {
		if added := k.Sealer.Add(key); added != nil {
			return added
		}
		k.Log.Info("received a secrets key from another server", "key", key.ID())
	}
	return err
}

// Unseal decrypts secrets, after asking the other servers for the key if it is missing.
func (k *Keeper) Unseal(ctx context.Context, sealed, additional []byte) (map[string]string, error) {
	open, err := k.Sealer.Unseal(sealed, additional)
	if !errors.Is(err, secrets.ErrKey) {
		return open, err
	}
	if asked := k.fetch(ctx, secrets.KeyOf(sealed)); asked != nil {
		k.Log.Debug("not every server was asked for a secrets key", "key", secrets.KeyOf(sealed), "error", asked)
	}
	return k.Sealer.Unseal(sealed, additional)
}

func ids(keys claim.SecretsKeys) (out []string) {
	for _, key := range keys.Keys {
		out = append(out, key.ID)
	}
	return out
}

// next returns the key that is about to become active; empty: none.
func next(keys claim.SecretsKeys) string {
	if n := len(keys.Keys); keys.Active != "" && n > 0 && keys.Keys[n-1].ID != keys.Active {
		return keys.Keys[n-1].ID
	}
	return ""
}

// old returns the keys before the active one.
func old(keys claim.SecretsKeys) []string {
	all := ids(keys)
	return all[:max(slices.Index(all, keys.Active), 0)]
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
