// Package e2e tests the whole host as its users see it: the built agent, plugins, drivers and CLI, with real
// mounts. The same tests run with csi-local and with csi-driver-host-path, a third-party driver.
//
// After each injected fault nothing may be claimed, mounted or left behind (testhost.NothingInUse), and a
// plain start and stop must work. The faults are:
//
// - each gRPC code, and an unknown one, at each call of a start, a stop and of every volume command
// (faults_codes_test.go)
// - a driver that hangs, works and then drops the connection or dies, forgets everything, or lies
// (faults_driver_test.go)
// - busy or foreign mounts, and links, in the way (faults_mounts_test.go)
// - a nearly full and a full disk, a real small ext4 (faults_disk_test.go)
// - bad plugins beside a good one (faults_plugins_test.go)
// - bad specifications and requests (input_test.go)
// - 64 concurrent workloads on 32 volumes, also with the agent killed twice (concurrency_test.go)
// - csi-bridge and the agent replaced in the middle of calls (swap_test.go, swap_load_test.go)
//
// A fault is scripted for a number of calls, and a hang ends with its caller or the driver, so retries take
// no time. test/lib/faultydriver checks every call against the volume's life cycle. Under make race the agent
// is built with the race detector, and a race report in the agent's log fails the test. A storm that fails
// prints its seed.
package e2e
