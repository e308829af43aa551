package state

import (
	"encoding/binary"

	"github.com/dgraph-io/badger/v4"
)

// Servers is raft's configuration as of the last applied entry, so that raft can begin there without reading its log
// up to it. It belongs to this server's copy of the ledger: no snapshot has it.
type Servers struct {
	// Since is the index after which every configuration was recorded.
	Since uint64
	// Index is the entry of the last configuration after Since; 0: there was none.
	Index uint64
	// Configuration is in raft's encoding.
	Configuration []byte
}

const serversKey = "m/servers"

// Servers returns the configuration that the ledger has recorded.
func (s *Store) Servers() (recorded Servers, err error) {
	err = s.View(func(tx *ReadTx) error {
		recorded, _, err = tx.servers()
		return err
	})
	return recorded, err
}

func (tx *ReadTx) servers() (recorded Servers, found bool, err error) {
	data, err := tx.get(serversKey)
	if err != nil || data == nil {
		return Servers{}, false, err
	}
	if len(data) < 16 {
		return Servers{}, false, fault("the record of raft's configuration has %d bytes", len(data))
	}
	return Servers{
		Since: binary.BigEndian.Uint64(data), Index: binary.BigEndian.Uint64(data[8:]), Configuration: data[16:],
	}, true, nil
}

func (r Servers) encode() []byte {
	data := binary.BigEndian.AppendUint64(nil, r.Since)
	return append(binary.BigEndian.AppendUint64(data, r.Index), r.Configuration...)
}

// putServers records the configuration of the entry at index.
func (tx *writeTx) putServers(index uint64, configuration []byte) error {
	recorded, _, err := tx.servers()
	if err != nil {
		return err
	}
	recorded.Index, recorded.Configuration = index, configuration
	tx.put(serversKey, recorded.encode())
	return nil
}

// beginServers records, in a ledger without a record, that configurations are recorded from now on.
func beginServers(db *badger.DB) error {
	txn := db.NewTransaction(false)
	defer txn.Discard()
	tx := ReadTx{txn: txn}
	_, found, err := tx.servers()
	if err != nil || found {
		return err
	}
	applied, err := tx.Index()
	if err != nil {
		return err
	}
	return db.Update(func(txn *badger.Txn) error { return txn.Set([]byte(serversKey), Servers{Since: applied}.encode()) })
}
