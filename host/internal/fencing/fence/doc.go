// Package fence sees to it that a node that lost touch with the servers does not use its
// volumes any more when these give the claims to others: also where its agent is stopped
// (SIGSTOP), hangs, or was killed.
//
// The fence is a small process of its own, `pannier fence`. The agent starts it, tells it
// over a unix socket what is about to be mounted and when the lease ends, and renews
// that. When the deadline passes the fence kills who uses the mounts, unmounts them, and
// leaves a Report. docs/fencing.md tells what that bounds, and what it does not.
//
// What must stay true: the fence never acts while its deadline is ahead, or where it was
// never given one; it knows of a mount before a driver is asked for it; it outlives the
// agent, and a fence that was killed comes back with what it knew, as long as the
// machine runs; there is one for a data directory.
//
// It knows neither servers nor claims: package lease decides when the deadline is.
package fence
