// Package serve runs a gRPC server on a unix socket: it refuses a socket on
// which somebody answers, takes over one on which nobody does, logs each call
// without its secrets, turns a panic into an error, and stops gracefully within
// a bound. It knows nothing about volumes.
package serve
