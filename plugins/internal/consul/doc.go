// Package consul is the way to Consul's HTTP API for the plugins that need it: one
// pool of connections for each Consul, the ACL token out of its file, and errors
// with a gRPC code that says whether another try is worth it.
//
// What must stay true:
//   - no token is in an error;
//   - a Consul never sees more than maxConns connections of one process: it refuses
//     more than 200 of one address (limits.http_max_conns_per_client), and several
//     plugins may run on a host;
//   - after Close no goroutine and no connection is left.
//
// It may import sdk/service, consul/api and gRPC's codes.
package consul
