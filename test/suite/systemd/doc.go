// Package systemd tests the agent under a real systemd as process 1, on a machine of its own, with the units of
// packaging/systemd as they are.
package systemd
