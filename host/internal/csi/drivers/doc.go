// Package drivers is the registry of the CSI drivers on this node. A driver is declared in the
// configuration or registered at run time. The registry starts the driver's process if it has a
// command, follows its health and capabilities through a storage plugin (csi-bridge), and returns
// immutable snapshots of what it knows.
//
// Each driver has an instance with its own goroutines:
//
//   - run starts the process, or finds the one that an earlier host started, and restarts it when it
//     exits. Beside it, watch holds the fingerprint stream. A driver without a command has only
//     watch.
//   - leave removes a registered driver that has stopped, and one that is gone from the
//     configuration. Neither is removed while a volume is mounted through it.
//
// What must stay true:
//
//   - A driver's process is never started twice and never lost: driver.json in the driver's folder
//     records it before it runs, and is read before a process is started.
//   - A snapshot (Driver) is never changed, and every change notifies the waiters of Changed.
//   - Nothing about a driver's volumes is decided here: Config.InUse says which are mounted.
//   - Processes outlive a crash of the host. Only Close with stop, a deregistration or a changed
//     command ends one.
//   - The package knows neither go-plugin nor raft, and does not speak CSI.
package drivers
