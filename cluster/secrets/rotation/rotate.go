package rotation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/internal/errcode"
)

// ErrNotEverywhere means that a key has not reached all servers that must have it.
var ErrNotEverywhere = errcode.Unavailable.New("not every server has the new secrets key, so the old one stays in use")

// Rotate makes a new key the one that seals, and returns its id. What old keys seal is re-encrypted in the background
// (Lead). If another leader was interrupted after naming a key in the ledger, that rotation is finished instead.
// ErrNotEverywhere names the servers that did not store the key; nothing has changed then.
func (k *Keeper) Rotate(ctx context.Context) (id string, err error) {
	k.changing.Lock()
	defer k.changing.Unlock()
	keys, err := k.read(ctx)
	if err != nil {
		return "", err
	}
	if keys.Active == "" {
		if keys, err = k.nameFirst(ctx); err != nil {
			return "", err
		}
	}
	if id = next(keys); id == "" {
		key := secrets.NewKey()
		id = key.ID()
		if err := k.offer(ctx, key, everyServer); err != nil {
			return "", err
		}
		if keys, err = cluster.Apply(ctx, k.Ledger, &command.PutSecretsKey{ID: id}); err != nil {
			return "", err
		}
		if err := k.use(ctx, keys); err != nil {
			return "", err
		}
	}
	if err := k.activate(ctx, id); err != nil {
		return "", err
	}
	return id, nil
}

// activate makes a key in the ledger the one that seals. A server that has joined since the key was named may not have
// it, so it is offered again.
func (k *Keeper) activate(ctx context.Context, id string) error {
	key, ok := k.Sealer.Get(id)
	if !ok {
		return fmt.Errorf("activate the secrets key %s: %w: this server does not have it", id, ErrNotEverywhere)
	}
	if err := k.offer(ctx, key, everyServer); err != nil {
		return err
	}
	keys, err := cluster.Apply(ctx, k.Ledger, &command.PutSecretsKey{ID: id, Active: true})
	if err != nil {
		return err
	}
	k.Log.Info("a new secrets key is active", "key", id)
	return k.use(ctx, keys)
}

// How many of a number of servers must have a key.
func everyServer(servers int) int { return servers }
func majority(servers int) int    { return servers/2 + 1 }

// offer sends a key to all servers, this one first.
func (k *Keeper) offer(ctx context.Context, key secrets.Key, enough func(servers int) int) error {
	if err := k.Sealer.Offer(key); err != nil {
		return err
	}
	if k.Servers == nil {
		return nil
	}
	names, err := k.Ledger.Servers()
	if err != nil {
		return err
	}
	without := make([]string, len(names))
	var asked sync.WaitGroup
	for i, name := range names {
		if name == k.Name {
			continue
		}
		asked.Go(func() { without[i] = text(k.Servers.OfferSecretsKey(ctx, name, key)) })
	}
	asked.Wait()
	without = slices.DeleteFunc(without, func(why string) bool { return why == "" })
	if len(names)-len(without) < enough(len(names)) {
		return fmt.Errorf(
			"%w: %s; try again when they are back, or remove one that is gone: pannier operator raft remove-peer NAME",
			ErrNotEverywhere, strings.Join(without, "; "))
	}
	return nil
}

// nameFirst gives the ledger its first key: the one that seals what is in it, else this server's own from when it was
// standalone, else a new one.
func (k *Keeper) nameFirst(ctx context.Context) (keys claim.SecretsKeys, err error) {
	key, err := k.first(ctx)
	if err != nil {
		return keys, err
	}
	if err := k.offer(ctx, key, majority); err != nil {
		return keys, err
	}
	if keys, err = cluster.Apply(ctx, k.Ledger, &command.PutSecretsKey{ID: key.ID(), Active: true}); err != nil {
		return keys, err
	}
	k.Log.Info("the cluster has its first secrets key", "key", key.ID())
	return keys, k.use(ctx, keys)
}

func (k *Keeper) first(ctx context.Context) (secrets.Key, error) {
	sealed, err := k.sealed(ctx)
	if err != nil {
		return secrets.Key{}, err
	}
	own, hasOwn := k.Sealer.Get(k.Sealer.First())
	if hasOwn && (len(sealed) == 0 || sealed[own.ID()] > 0) {
		return own, nil
	}
	for _, id := range slices.Sorted(maps.Keys(sealed)) {
		if key, ok := k.Sealer.Get(id); ok {
			return key, nil
		}
		asked := k.fetch(ctx, id)
		if key, ok := k.Sealer.Get(id); ok {
			return key, nil
		}
		if asked != nil {
			return secrets.Key{}, fmt.Errorf("find the secrets key %s, which seals records in the ledger: %w", id, asked)
		}
	}
	if hasOwn {
		return own, nil
	}
	return secrets.NewKey(), nil
}

func (k *Keeper) read(ctx context.Context) (keys claim.SecretsKeys, err error) {
	err = k.Ledger.ReadLatest(ctx, func(tx *state.ReadTx) (err error) {
		keys, err = tx.SecretsKeys()
		return err
	})
	return keys, err
}
