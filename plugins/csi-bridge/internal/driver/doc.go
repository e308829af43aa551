// Package driver is the way to a CSI driver: one connection for each endpoint,
// and on it each call with its deadline, its retries, its place in the queue of
// its volume, its log line and its error text. The whole policy is in calls.go.
//
// What must stay true:
//   - an RPC is made only inside Conn.Do, so none is without a deadline;
//   - at most one operation for a volume is in flight (CSI spec, "Concurrency");
//   - no secret of a request is in a log or in an error.
//
// It may import sdk/storage, the CSI spec and gRPC; it knows nothing of what
// the operations mean, which is package bridge's.
package driver
