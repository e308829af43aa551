// Package dockervolume tests the plugin docker-volume with real container engines: dockerd and Podman use volumes of a
// real agent, whose plugin is killed, swapped and away, and two hosts want one volume.
package dockervolume
