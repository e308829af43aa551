// Package hostservices is what the host offers its plugins, besides calling them: a small state for each (state.go), a
// place for their metrics (metrics.go) and spans, and, for front doors, listening sockets (sockets.go) and a way to the
// API.
// DESIGN.md explains how a plugin reaches it.
//
// Invariants: which plugin calls follows from the process that the host has a connection to, never from what a call
// says; a plugin sees its own state only; what a plugin uses here is bounded. A listening socket is open as long as the
// host or a process of the plugin has it.
package hostservices
