package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/backup"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/internal/atomicfile"
)

// Restore replaces the whole ledger by a snapshot. It is verified and loaded beside the ledger in use, and then takes
// its place at once: a crash or an error before that leaves the ledger as it was.
func (s *Store) Restore(r io.Reader) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	old, release, err := s.acquire() // it stays open: Close waits for s.writing
	if err != nil {
		return err
	}
	release()
	number := s.number + 1
	if err := os.RemoveAll(filepath.Join(s.dir, generationName(number))); err != nil {
		return fmt.Errorf("restore the ledger: %w", err)
	}
	next, err := s.openGeneration(number)
	if err != nil {
		return fmt.Errorf("restore the ledger: %w", err)
	}
	index, err := next.load(r)
	if err != nil {
		return errors.Join(fmt.Errorf("restore the ledger: %w", err), next.close(), os.RemoveAll(next.dir))
	}
	if err := atomicfile.WriteFile(filepath.Join(s.dir, currentFile), []byte(fmt.Sprint(number))); err != nil {
		return errors.Join(fmt.Errorf("restore the ledger: %w", err), next.close())
	}
	s.mu.Lock()
	s.gen, s.number = next, number
	s.mu.Unlock()
	s.fault.Store(nil)
	s.pruned = pruned{}
	s.applied.Store(index)
	s.changes.reset(index)
	err = errors.Join(old.close(), os.RemoveAll(old.dir))
	s.watchers.publishAll()
	if err != nil {
		s.log.Warn("could not delete the ledger that a snapshot replaced", "dir", old.dir, "error", err)
	}
	return nil
}

// load fills an empty generation with a snapshot's records and their index keys.
func (g *generation) load(r io.Reader) (index uint64, err error) {
	batch := g.db.NewWriteBatch()
	defer batch.Cancel()
	index, err = backup.Records(r, func(kind byte, value []byte) error {
		key, indexKeys, err := keysOf(kind, value)
		if err != nil {
			return err
		}
		for _, p := range indexKeys {
			if err := batch.Set([]byte(p.key), p.value); err != nil {
				return err
			}
		}
		return batch.Set([]byte(key), bytes.Clone(value))
	})
	if err != nil {
		return 0, err
	}
	if err := batch.Set(appliedKey, binary.BigEndian.AppendUint64(nil, index)); err != nil {
		return 0, err
	}
	err = batch.Flush()
	g.committed()
	g.compactor.Wrote() // once: each time it would write again what it has compacted before
	return index, err
}

// pair is a key and its value.
type pair struct {
	key   string
	value []byte
}

// keysOf decodes a record of a snapshot, and returns its key, and its index keys with their values.
func keysOf(kind byte, value []byte) (key string, index []pair, err error) {
	switch kind {
	case volumes[0]:
		v, err := decode[claim.Volume](value)
		return volumeKey(v.VolumeRef), withoutValues(volumeIndexKeys(&v)), err
	case claims[0]:
		c, err := decode[claim.Claim](value)
		return claimKey(c.Volume, c.Workload), withoutValues(claimIndexKeys(&c)), err
	case workloads[0]:
		w, err := decode[claim.Workload](value)
		return workloadKey(w.Ref), withoutValues(workloadIndexKeys(&w)), err
	case nodes[0]:
		n, err := decode[claim.Node](value)
		if err != nil {
			return "", nil, err
		}
		for id, d := range n.Drivers {
			data, err := codec.Marshal(d)
			if err != nil {
				return "", nil, err
			}
			index = append(index, pair{driverNodeKey(id, n.Name), data})
		}
		return nodeKey(n.Name), index, nil
	case drivers[0]:
		d, err := decode[claim.Driver](value)
		return driverKey(d.ID), nil, err
	case identity[0]:
		_, err := decode[claim.Cluster](value)
		return identity, nil, err
	case tokens[0]:
		t, err := decode[claim.Token](value)
		return tokenKey(t.ID), withoutValues(tokenIndexKeys(&t)), err
	case signingKey[0]:
		_, err := decode[claim.SigningKey](value)
		return signingKey, nil, err
	case restoring[0]:
		_, err := decode[claim.Mark](value)
		return restoring, nil, err
	case keyRotation[0]:
		_, err := decode[claim.KeyRotation](value)
		return keyRotation, nil, err
	case aclPolicies[0]:
		p, err := decode[acl.Policy](value)
		return policyKey(p.Name), nil, err
	case aclRoles[0]:
		r, err := decode[acl.Role](value)
		return roleKey(r.Name), nil, err
	case aclTokens[0]:
		t, err := decode[acl.Token](value)
		return aclTokenKey(t.Accessor), withoutValues(aclTokenIndexKeys(&t)), err
	case aclBootstrap[0]:
		_, err := decode[acl.Bootstrap](value)
		return aclBootstrap, nil, err
	case liveness[0]:
		_, err := decode[claim.Liveness](value)
		return liveness, nil, err
	case autopilot[0]:
		_, err := decode[claim.Autopilot](value)
		return autopilot, nil, err
	case secretsKeys[0]:
		_, err := decode[claim.SecretsKeys](value)
		return secretsKeys, nil, err
	case snapshots[0]:
		s, err := decode[claim.Snapshot](value)
		return snapshotKey(s.SnapshotRef), withoutValues(snapshotIndexKeys(&s)), err
	case keptResults[0]:
		k, err := decode[kept](value)
		return keptKey(k.Key), withoutValues(keptIndexKeys(&k)), err
	default:
		return "", nil, fmt.Errorf("there are no keys for records of the kind %q", kind)
	}
}

func withoutValues(keys []string) []pair {
	index := make([]pair, len(keys))
	for i, k := range keys {
		index[i].key = k
	}
	return index
}
