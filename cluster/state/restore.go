package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
)

// Restore replaces the whole ledger by a snapshot. It is loaded beside the ledger in
// use, checked, and then put in its place at once: a crash or an error before
// that leaves the ledger as it was.
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
	index, err := load(next.db, r)
	if err != nil {
		return errors.Join(fmt.Errorf("restore the ledger: %w", err), next.db.Close(), os.RemoveAll(next.dir))
	}
	if err := writeFile(s.dir, currentFile, fmt.Sprint(number)); err != nil {
		return errors.Join(fmt.Errorf("restore the ledger: %w", err), next.db.Close())
	}
	s.mu.Lock()
	s.gen, s.number, s.broken = next, number, nil
	s.mu.Unlock()
	s.pruned = pruned{}
	s.applied.Store(index)
	s.changes.reset(index)
	old.readers.Wait()
	err = errors.Join(old.db.Close(), os.RemoveAll(old.dir))
	s.watchers.publishAll()
	if err != nil {
		s.log.Warn("could not clear away the ledger that a snapshot replaced", "dir", old.dir, "error", err)
	}
	return nil
}

// load fills an empty Badger with a snapshot's records and their index keys.
func load(db *badger.DB, r io.Reader) (index uint64, err error) {
	batch := db.NewWriteBatch()
	defer batch.Cancel()
	index, err = readSnapshot(r, func(kind byte, value []byte) error {
		key, indexKeys, err := keysOf(kind, value)
		if err != nil {
			return err
		}
		if err := batch.Set([]byte(key), value); err != nil {
			return err
		}
		for k, v := range indexKeys {
			if err := batch.Set([]byte(k), v); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if err := batch.Set(appliedKey, binary.BigEndian.AppendUint64(nil, index)); err != nil {
		return 0, err
	}
	if err := putKeysVersion(batch.Set); err != nil {
		return 0, err
	}
	return index, batch.Flush()
}

// keysOf tells where a record of a snapshot belongs, and its index keys with
// their values.
func keysOf(kind byte, value []byte) (key string, indexKeys map[string][]byte, err error) {
	indexKeys = map[string][]byte{}
	add := func(keys []string) {
		for _, k := range keys {
			indexKeys[k] = nil
		}
	}
	switch kind {
	case volumes[0]:
		v, err := decode[claim.Volume](value)
		if err != nil {
			return "", nil, err
		}
		add(volumeIndexKeys(&v))
		return volumeKey(v.VolumeRef), indexKeys, nil
	case claims[0]:
		c, err := decode[claim.Claim](value)
		if err != nil {
			return "", nil, err
		}
		add(claimIndexKeys(&c))
		return claimKey(c.Volume, c.Workload), indexKeys, nil
	case workloads[0]:
		w, err := decode[claim.Workload](value)
		if err != nil {
			return "", nil, err
		}
		add(workloadIndexKeys(&w))
		return workloadKey(w.Ref), indexKeys, nil
	case nodes[0]:
		n, err := decode[claim.Node](value)
		if err != nil {
			return "", nil, err
		}
		for id, d := range n.Drivers {
			if indexKeys[driverNodeKey(id, n.Name)], err = encode(d); err != nil {
				return "", nil, err
			}
		}
		return nodeKey(n.Name), indexKeys, nil
	case drivers[0]:
		d, err := decode[claim.Driver](value)
		if err != nil {
			return "", nil, err
		}
		return driverKey(d.ID), indexKeys, nil
	case identity[0]:
		_, err := decode[claim.Cluster](value)
		return identity, indexKeys, err
	case tokens[0]:
		t, err := decode[claim.Token](value)
		if err != nil {
			return "", nil, err
		}
		add(tokenIndexKeys(&t))
		return tokenKey(t.ID), indexKeys, nil
	case signingKey[0]:
		_, err := decode[claim.SigningKey](value)
		return signingKey, indexKeys, err
	case aclPolicies[0]:
		p, err := decode[acl.Policy](value)
		return policyKey(p.Name), indexKeys, err
	case aclRoles[0]:
		r, err := decode[acl.Role](value)
		return roleKey(r.Name), indexKeys, err
	case aclTokens[0]:
		t, err := decode[acl.Token](value)
		add(aclTokenIndexKeys(&t))
		return aclTokenKey(t.Accessor), indexKeys, err
	case aclBootstrap[0]:
		_, err := decode[acl.Bootstrap](value)
		return aclBootstrap, indexKeys, err
	case liveness[0]:
		_, err := decode[claim.Liveness](value)
		return liveness, indexKeys, err
	case secretsKeys[0]:
		_, err := decode[claim.SecretsKeys](value)
		return secretsKeys, indexKeys, err
	case keptResults[0]:
		k, err := decode[kept](value)
		add(keptIndexKeys(&k))
		return keptKey(k.Key), indexKeys, err
	default:
		return "", nil, fmt.Errorf("%w: a record of the unknown kind %q (written by a newer version)", ErrBadSnapshot, kind)
	}
}
