// Package acl decides what a caller may do: it parses policies (HCL), merges one caller's policies into Rules, and
// finds the Rules of a token's secret.
//
// policy.go parses policies (config has their syntax), rules.go merges several, resolver.go looks a token up. What an
// API call needs is in host/internal/apiserver; the policies, roles and tokens themselves are in cluster/acl.
//
// What must stay true:
//
//   - What no policy names is denied.
//   - Only the most specific pattern that matches a namespace counts. Among the policies with that pattern, a deny
//     overrides everything else.
//   - An expired token is refused at each use, also if its lookup was cached.
//   - Secrets are not kept: a cache has only their SHA-256.
package acl
