// Package xds is a proxy's side of Consul's xDS for tests and the demo, in which no
// Envoy is: it does what Envoy does first. It reads a bootstrap strictly, finds the
// server, its CA, the token and the node id in it and nowhere else, opens the ADS
// stream and receives the proxy's clusters and listeners.
//
// It may be imported by tests and the demo only, and imports nothing of this module.
package xds
