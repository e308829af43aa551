// Package journal is the node's durable record of what it has done and means to
// do: a small store of JSON records in a Badger database of its own.
//
// Every write survives the death of this process at once: it is in the page
// cache when Update returns. A write that must also survive the loss of power
// says so (Durable); such writes are synced together, so many callers pay for one
// fsync. What a mount step records need not be: after a reboot nothing is mounted.
//
// It knows no workload and no volume: whoever owns a kind of record gives it a
// Bucket. It imports no other package of this module.
package journal
