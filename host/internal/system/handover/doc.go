// Package handover passes an agent's sockets and locks to the program that replaces it in the same process (execve(2)),
// so that nobody who calls the agent is refused.
//
// A listening socket stays open all the time: the kernel queues who connects meanwhile. A connection on which no call
// is being answered is parked: the next program gets it, with the bytes that were read of a request that no handler
// has begun. A call that a handler has begun is answered by the old program, before it goes. Only HTTP/1.1 without TLS
// has connections that can be parked. All others are closed, in the way of their protocol.
//
// What stays true:
//
//   - A request is answered by one program: a handler begins only after Enter has returned true, and from then on its
//     connection is not parked before the answer is complete, or the handler gave it up unanswered (Leave).
//   - Freeze can be undone (Thaw) until Close.
//   - A client that sends a request before it has the answer to the one before (pipelining) may lose it. No client of
//     the agent does.
package handover
