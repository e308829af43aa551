// Package crash kills the host, its plugin and its drivers at every instant that
// matters, lets them come back, and compares what there is then with what there is
// without the kill: claims, journal, mounts, loop devices, the driver's own list,
// directories and processes. docs/testing.md says what is killed where.
//
//	make crash                                                  the whole matrix
//	go test ./test/suite/crash                                        a sample of it, as in make test
//	go test ./test/suite/crash -full -seed=7 -run 'TestMatrix/start'  a part of it
package crash
