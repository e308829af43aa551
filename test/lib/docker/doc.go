// Package docker runs a real Docker daemon for tests, apart from any other: its
// own mount namespace, folders and socket, no network. Its mount namespace has
// shared propagation from the root on, as systemd gives it to a host, and what
// the test does in it is not seen outside. Nothing is left when the test ends.
//
// It may be imported by tests only. It needs root and dockerd.
package docker
