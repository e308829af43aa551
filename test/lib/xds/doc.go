// Package xds is the proxy's side of Consul's xDS, for tests that look at what Consul sends. It does what Envoy
// does first: it parses a bootstrap strictly, takes the server, its CA, the token and the node id only from there,
// opens the ADS stream and receives the proxy's clusters and listeners.
//
// It is for tests only, and imports nothing of this module.
package xds
