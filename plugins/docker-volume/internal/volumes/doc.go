// Package volumes serves the volume plugin protocol of Docker and Podman (docs.docker.com/engine/extend/plugins_volume)
// from the host's API: protocol.go has the calls, options.go what `docker volume create -o` takes, state.go the volumes
// and who has them mounted, work.go the workload of a volume, door.go the plugin.
//
// Invariants: a volume is released only when no Mount counts and nobody holds its mount; no call of a container engine
// is made; what must last is in the ledger, and what the engine has asked for in the host's key-value state.
package volumes
