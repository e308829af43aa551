// Package hostservices is what the host offers its plugins, besides calling them: a small state for each (state.go),
// and a place for their metrics (metrics.go). DESIGN.md explains how a plugin reaches it.
//
// Invariants: which plugin calls follows from the process that the host has a connection to, never from what a call
// says; a plugin sees its own state only; what a plugin uses here is bounded.
package hostservices
