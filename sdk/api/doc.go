// Package api is the Go client of a Pannier agent. The services are protobuf (proto/pannier/host/v1), served by
// Connect:
// the command line, curl with JSON and programs that use this package all call the same ones.
//
// Agents listen on a unix socket for root and the socket's group, and identify the caller by the socket's peer
// credentials. An agent with certificates is called over https too (WithTLS). Errors are *connect.Error with a code. If
// an
// agent cannot be reached, the code is CodeUnavailable and the error wraps an *UnreachableError.
package api
