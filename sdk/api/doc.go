// Package api is the Go client of a Pannier agent. The services themselves are
// protobuf (proto/pannier/host/v1), served by connect: the command line, curl
// with JSON and programs through this package all use the same ones.
//
// An agent's way in is its unix socket, which root and the socket's group may
// use; the agent takes the caller from the socket's peer credentials. One that has
// certificates is called over https too (WithTLS). Errors are
// *connect.Error with a code; an agent that cannot be reached is an
// *UnreachableError inside one with CodeUnavailable.
//
// It imports the generated code and connect, and nothing else of this module.
package api
