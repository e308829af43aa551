package state

import (
	"encoding/binary"
	"fmt"

	"github.com/dgraph-io/badger/v4"

	"github.com/pannier/pannier/cluster/claim"
)

// keysVersion is that of the index keys that this program keeps: 2 has workloads by node.
const keysVersion = 2

var keysVersionKey = []byte("m/keys")

func putKeysVersion(set func(key, value []byte) error) error {
	return set(keysVersionKey, binary.BigEndian.AppendUint32(nil, keysVersion))
}

// upgradeKeys adds the index keys that an older program did not keep. It may be cut off, and
// then begins again.
func upgradeKeys(db *badger.DB) error {
	txn := db.NewTransaction(false)
	defer txn.Discard()
	tx := ReadTx{txn: txn}
	data, err := tx.get(string(keysVersionKey))
	if err != nil {
		return err
	}
	if len(data) == 4 {
		switch v := binary.BigEndian.Uint32(data); {
		case v > keysVersion:
			return fmt.Errorf("%w: index keys of version %d, this program knows up to %d", ErrNewerRecord, v, keysVersion)
		case v == keysVersion:
			return nil
		}
	}
	batch := db.NewWriteBatch()
	defer batch.Cancel()
	all, err := records[claim.Workload](&tx, span{base: workloads})
	if err != nil {
		return err
	}
	for i := range all {
		for _, key := range workloadIndexKeys(&all[i]) {
			if err := batch.Set([]byte(key), nil); err != nil {
				return err
			}
		}
	}
	if err := batch.Flush(); err != nil {
		return err
	}
	return db.Update(func(txn *badger.Txn) error { return putKeysVersion(txn.Set) })
}
