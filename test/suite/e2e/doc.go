// Package e2e tests the whole host as its users see it: the built agent, plugin,
// drivers and CLI, with real mounts. The same tests run with csi-local and with
// csi-driver-host-path, which nobody of this project wrote.
package e2e
