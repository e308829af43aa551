// Package docker runs a real Docker daemon for tests, separate from any other: it has its own mount namespace,
// directories and socket, and no network. Mounts in its namespace are shared from the root on, as systemd sets it
// up on a host, and invisible outside. Nothing is left when the test ends.
//
// It is for tests only, and needs root and dockerd.
package docker
