// Package consul runs real Consul servers for tests: the program that tools/tool
// builds, on loopback, with ports from the kernel, its data in a temporary folder.
// A test that needs Consul to fail stops and restarts servers, or puts a Proxy
// before one. Nothing is left when the test ends.
//
// It may be imported by tests only, and imports nothing of the host, the cluster or
// the plugins.
package consul
