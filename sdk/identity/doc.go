// Package identity is the kind "identity": a plugin that gives workloads' services
// their Consul tokens.
package identity
