// Package handover passes an agent's listening sockets, locks and idle connections to the program that replaces it in
// the same process (execve(2)), so that nobody who calls the agent is refused.
//
// A listening socket stays open all the time: the kernel queues who connects meanwhile. A call that was begun is
// answered by the program that has begun it. Of a call that was not begun nothing is read (Conn): it stays in its
// socket, which the next program gets. Only HTTP/1.1 without TLS has such connections. All others are closed, in the
// way of their protocol.
//
// What stays true:
//
//   - A request is answered by one program: its first byte is read only while calls are not held back, and from then on
//     Hold waits until the answer is complete (or Uncount).
//   - Hold can be undone (Release) until the sockets' servers are closed.
//   - A client that sends a request before it has the answer to the one before (pipelining) may lose it. No client of
//     the agent does.
package handover
