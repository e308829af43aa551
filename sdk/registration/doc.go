// Package registration is the kind "registration": a plugin that puts workloads'
// services into a catalog.
package registration
