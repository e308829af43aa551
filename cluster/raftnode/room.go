package raftnode

import (
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// roomy is a log that takes entries while there is room for them, and for what the ledger
// makes of them. Without room a leader steps down, and other servers are told to try
// again.
type roomy struct {
	*wal.WAL
	room func() error // nil: there always is
}

// StoreLog appends an entry (raft.LogStore).
func (r roomy) StoreLog(log *raft.Log) error { return r.StoreLogs([]*raft.Log{log}) }

// StoreLogs appends entries (raft.LogStore).
func (r roomy) StoreLogs(logs []*raft.Log) error {
	if r.room != nil {
		if err := r.room(); err != nil {
			return err
		}
	}
	return r.WAL.StoreLogs(logs)
}

// DeleteRange deletes entries (raft.LogStore). Those at the end are to be replaced by others:
// raft does not get over it when only the first half of that is done.
func (r roomy) DeleteRange(lowest, highest uint64) error {
	if r.room != nil {
		first, err := r.FirstIndex()
		if err != nil {
			return err
		}
		if lowest > first {
			if err := r.room(); err != nil {
				return err
			}
		}
	}
	return r.WAL.DeleteRange(lowest, highest)
}
