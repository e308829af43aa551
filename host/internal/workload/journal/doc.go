// Package journal is the node's record of what it has done and means to do: a
// small store of JSON records in a Badger database of its own.
//
// Every write survives the death of this process at once: it is in the page cache
// when Update returns. None is synced to the disk, so the loss of power may take the
// last seconds of them, and bring back what they had deleted. Nothing depends on
// these: no driver is called before the workload's claims are in the ledger, which
// is synced; after a reboot nothing is mounted; and claims that the journal does not
// know are released. Whoever keeps records here has to be able to say the same.
//
// It knows no workload and no volume: whoever owns a kind of record gives it a
// Bucket. It imports no other package of this module.
package journal
