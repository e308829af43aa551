// Package faultydriver is a CSI driver for tests that fails as it is told to:
// each RPC, call by call, can answer any code, hang, be late, panic, do the work
// and lose the connection, or take the whole driver down. It records every
// request with its time and its deadline.
//
//	d := faultydriver.Start(t, faultydriver.Config{})
//	d.Script("NodeStageVolume", faultydriver.Code(codes.Unavailable, "busy"), faultydriver.Hang())
//	... two stagings fail, the third succeeds
//	if n := len(d.Calls("NodeStageVolume")); n != 3 { ... }
//
// It is served over a real unix socket, speaks plain CSI and can be stopped and
// started again at the same path. Left alone it is a correct, idempotent driver
// that keeps volumes in memory and makes target paths as plain directories; what
// it knows survives Restart, as a real back end would.
//
// It may be imported by tests only, and imports nothing of this module but testbin.
package faultydriver
