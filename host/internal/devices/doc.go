// Package devices knows the devices of this node: which there are and how they are, as
// the device plugins' fingerprints say, and which workload has which.
//
// A plugin that is swapped or started again says nothing about its devices: what was
// known stands for a while. Who has which device is kept in memory only; it is in the
// workloads' records, from which it is put back by Hold before anything else is given.
//
// It imports the SDK's kind and package events, and knows plugins as functions only.
package devices
