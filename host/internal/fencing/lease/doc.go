// Package lease is a node's right to use volumes without asking the servers: how long it lasts, what renews it, and
// what happens when it ends.
//
// A node sends heartbeats. The leader that answers one promises not to release the node's claims for stop_after plus a
// margin from the moment it received the heartbeat. The node's lease lasts stop_after from the moment it sent the
// heartbeat. So the lease always ends first, as long as the two clocks drift by no more than claim.MaxDrift.
// cluster/claim/liveness.go has the arithmetic, docs/fencing.md a picture of it.
//
// What must stay true: a lease counts from when a heartbeat was sent, never from when it was answered. The answer to
// an older heartbeat changes nothing. The fence has confirmed a longer lease, and each mount, before anything relies
// on it.
package lease
