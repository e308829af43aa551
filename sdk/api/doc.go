// Package api is the Go client of a Pannier agent. The services are defined in protobuf
// (proto/pannier/host/v1) and served with Connect. The command line, curl with JSON and programs that use
// this package all call the same services.
//
// Agents listen on a unix socket for root and the socket's group, and identify the caller by the socket's
// peer credentials. An agent with certificates can also be called over https (WithTLS). Errors are
// *connect.Error with a code. If an agent cannot be reached, the code is CodeUnavailable and the error wraps
// an *UnreachableError.
package api
