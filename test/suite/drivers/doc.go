// Package drivers runs CSI drivers, unmodified, through every operation of a real agent and through faults:
// csi-driver-host-path as it is now and as it was for CSI 1.0, and csi-local to compare. The result is MATRIX.md.
//
// The agent runs the driver. What a driver supports is read from the driver itself, not through the agent: where a
// capability is missing, the command must be refused for that reason. For a kill within a call, a proxy
// (test/lib/faultydriver) passes calls on, and kills the driver when a call has arrived or when its work is done.
// After each cell nothing is claimed, mounted or left behind (testhost.NothingInUse).
//
//	make drivers                                  the whole matrix, which is written to MATRIX.md
//	go test ./test/suite/drivers                  without most of the kills, as in make test
//	go test ./test/suite/drivers -full -run '/csi-local/clone'   one cell
package drivers
