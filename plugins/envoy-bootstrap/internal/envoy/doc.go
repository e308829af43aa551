// Package envoy makes the bootstrap of a proxy out of what is known about it: a
// function of its input (and of the environment, for the metrics URLs that name a
// variable), without I/O.
//
// What must stay true:
//   - it says the same as `consul connect envoy -bootstrap` does for the same proxy;
//     the test of parity lists every difference with its reason;
//   - the message is built of go-control-plane's types, and what is in it was
//     validated, in google.protobuf.Any too;
//   - the same input gives the same bytes;
//   - no token is in an error.
//
// It may import go-control-plane, protobuf and gRPC's codes.
package envoy
