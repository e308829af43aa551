// Package lease is a node's right to use volumes without asking the servers: how long it
// lasts, what renews it, and what happens when it is over.
//
// A node sends heartbeats. The leader that answers one promises to let the node's claims
// alone for stop_after and a margin from the moment it received the heartbeat. The node's
// lease runs from the moment it sent it, for stop_after; so it is always over first, as
// long as the clocks of the two differ by no more than MaxDrift. timeouts.go has the
// arithmetic, docs/fencing.md its picture.
//
// What must stay true: a lease counts from when a heartbeat was sent, never from when the
// answer came; an answer to an older heartbeat changes nothing; and the fence has heard
// of a longer lease, and of every mount, before anyone relies on it.
package lease
