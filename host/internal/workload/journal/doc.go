// Package journal is the node's durable record of what it has done and intends to do: a small store of JSON records in
// a Badger database of its own.
//
// Every write survives the death of this process: it is in the page cache when Update returns. Writes are not synced
// to disk, so a loss of power may undo the last seconds of them, deletions included. Nothing depends on these: no
// driver is called before the workload's claims are in the ledger, which is synced; after a reboot nothing is mounted;
// and claims that the journal does not know are released. This must hold for every kind of record that is stored here.
//
// A journal that is damaged, or that is older than it was in this boot, is set aside at the start: the owners of the
// records must be able to begin with an empty one.
//
// It does not know what it stores: the owner of a kind of record gives it a Bucket.
package journal
