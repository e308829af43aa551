// Package generator implements the bootstrap kind for Envoy and Consul: it waits for
// a proxy's registration, asks the local Consul agent what the bootstrap needs, and
// has package envoy make it.
//
// It asks as little as it can: one request where the host knows the xDS server's
// address and CA, one more for each that it does not know.
//
// What must stay true: nothing that Consul or a file says is kept between two calls,
// since all of it may change, but connections; and no token is in an error, in the
// log or in an argument of a program.
//
// It may import sdk/bootstrap, sdk/service, plugins/internal/consul, package envoy,
// consul/api and gRPC's codes.
package generator
