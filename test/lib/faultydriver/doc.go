// Package faultydriver is a CSI driver for tests with scripted faults: each call of each RPC can answer any code,
// hang, be late, panic, do the work and lose the connection, or kill the whole driver. It records every request
// with its time and its deadline.
//
//	d := faultydriver.Start(t, faultydriver.Config{})
//	d.Script("NodeStageVolume", faultydriver.Code(codes.Unavailable, "busy"), faultydriver.Hang())
//	... two stagings fail, the third succeeds
//	if n := len(d.Calls("NodeStageVolume")); n != 3 { ... }
//
// It is served over a real unix socket, speaks plain CSI and can be stopped and restarted at the same path.
// Without faults it is a correct, idempotent driver that keeps volumes in memory and makes target paths as plain
// directories; its state survives Restart, like a real backend.
//
// It is for tests only, and imports nothing of this module but testbin.
package faultydriver
