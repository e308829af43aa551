// Package bridge implements the storage kind over CSI: it says in CSI's words
// what the host asks in the SDK's, checks that the driver can do it, and brings
// the answer back. Deadlines, retries, queueing, logs and error texts are
// package driver's.
//
// What must stay true: it keeps nothing between two calls but connections and
// what drivers said of themselves, so that its process can be replaced at any
// moment; and it decides nothing about claims or steps: the host says which
// call is due.
//
// It may import sdk/storage, internal/driver, the CSI spec and gRPC's status.
package bridge
