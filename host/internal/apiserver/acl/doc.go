// Package acl says what a caller may do: it reads policies (HCL), merges those of one
// caller into Rules, and finds the Rules of a token's secret.
//
// policy.go has how a policy is written, rules.go what several of them allow together,
// resolver.go how a secret becomes an Identity, finder.go where tokens are looked up.
// What an API call needs is in host/internal/apiserver; what the ledger keeps of policies,
// roles and tokens is in cluster/acl.
//
// What must stay true:
//
//   - What no policy names is denied.
//   - Of a namespace's name the most exact pattern counts alone; of the policies that have
//     that pattern a deny wins over everything else.
//   - An expired token is refused at each use, however it was found.
//   - No secret is kept: a cache knows its SHA-256 only.
package acl
