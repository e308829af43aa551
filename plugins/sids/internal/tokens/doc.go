// Package tokens gives services their Consul tokens, in one of two ways: it mints
// them with a token of its own that has acl = "write", or it logs in with a JWT that
// the host has signed, and then needs no token.
//
// What must stay true:
//   - a token has one service identity, is local, and says in its description whose it
//     is, so that one that nobody remembers can be found and revoked;
//   - of what was minted the accessor is the caller's id: however often a call is
//     repeated, in whatever process, there is one token;
//   - no token, key or JWT is in an error, and the plugin logs nothing;
//   - the plugin keeps nothing between calls but connections.
//
// It may import the SDK, plugins/internal/consul and consul/api.
package tokens
