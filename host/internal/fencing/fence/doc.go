// Package fence stops a node from using its volumes once it has lost contact with the servers and they may give its
// claims to others. It works even if the node's agent is stopped (SIGSTOP), hangs or was killed.
//
// The fence is a small process of its own, `pannier-agent fence`. The agent starts it and tells it over a unix socket
// what is about to be mounted and when the lease ends, and again whenever the lease is renewed. When the deadline
// passes, the fence kills the processes that use the mounts, unmounts them, and writes a Report. docs/fencing.md
// describes what that guarantees and what it does not.
//
// What must stay true: the fence never acts before its deadline, nor if it was never given one. It knows of a mount
// before a driver is asked for it. It outlives the agent, and a fence that was killed is restarted with its state,
// until the machine reboots. There is one fence per data directory.
//
// It knows neither servers nor claims: package lease computes the deadline.
package fence
