// Package catalog turns the supervisor's plugins into typed clients, one method a
// kind. A caller borrows a client, calls it and gives it back; which process
// serves it, and that the process may be replaced, is none of its business.
//
// Errors of a plugin get "kind(name): " in front of them once, here, and keep
// their gRPC code.
//
// It imports the supervisor and the SDK's kinds.
package catalog
