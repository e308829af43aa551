// Package device is the kind "device": a plugin that tells which devices a host has and
// gives them to workloads.
package device
