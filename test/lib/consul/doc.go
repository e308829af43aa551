// Package consul runs real Consul servers for tests: the program that tools/tool builds, on loopback, with ports
// from the kernel and data in a temporary directory. A test that needs Consul to fail stops and restarts servers,
// or puts a Proxy before one. Nothing is left when the test ends.
//
// It is for tests only, and imports nothing of the host, the cluster or the plugins.
package consul
