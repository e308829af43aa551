package state

import (
	"slices"
	"sort"
	"strings"

	"github.com/dgraph-io/badger/v4"
)

// pending is what a transaction has written and Badger does not have yet. Badger's own
// transactions sort all that they hold anew for each scan, so that a scan in a batch of
// many commands would take longer with each command before it.
type pending struct {
	values map[string][]byte // nil: deleted
	keys   []string          // of values, sorted
}

// set notes a value, which is not nil, or with nil that the key is deleted.
func (p *pending) set(key string, value []byte) {
	if p.values == nil {
		p.values = map[string][]byte{}
	}
	if _, known := p.values[key]; !known {
		at := sort.SearchStrings(p.keys, key)
		p.keys = slices.Insert(p.keys, at, key)
	}
	p.values[key] = value
}

// from are the keys with the prefix, from start on.
func (p *pending) from(start, prefix string) []string {
	keys := p.keys[sort.SearchStrings(p.keys, start):]
	return keys[:sort.Search(len(keys), func(i int) bool { return !strings.HasPrefix(keys[i], prefix) })]
}

// store hands all to Badger.
func (p *pending) store(txn *badger.Txn) error {
	for _, key := range p.keys {
		var err error
		if value := p.values[key]; value == nil {
			err = txn.Delete([]byte(key))
		} else {
			err = txn.Set([]byte(key), value)
		}
		if err != nil {
			return fault("store %q: %w", key, err)
		}
	}
	return nil
}
