// Package faults tries what becomes of a cluster of real agents when its servers fail:
// all of them at once, one after the other, or their disks.
package faults
