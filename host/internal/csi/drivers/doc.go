// Package drivers is the registry of the CSI drivers on this node. A driver is
// declared in the configuration or registered at run time; the registry runs it
// where it has a command, follows its health and capabilities through a storage
// plugin (csi-bridge), and hands out immutable snapshots of what it knows.
//
// Each driver has an instance with goroutines of its own:
//
//   - run starts the process, or finds the one that an earlier host started, and
//     starts it again when it exits; beside it, watch holds the fingerprint stream.
//     Without a command there is only watch.
//   - leave takes a driver away by itself: a registered one that has stopped, and
//     one that is gone from the configuration. Neither goes while a volume is
//     mounted through it.
//
// What must stay true:
//
//   - A driver's process is never started twice and never lost: driver.json in the
//     driver's folder tells of it before it runs, and is read before one is started.
//   - A snapshot (Driver) is never changed, and every change closes Changed.
//   - Nothing is decided about a driver's volumes here: Config.InUse says which there are.
//   - What runs outlives a crash of the host. Only Close with stop, a
//     deregistration or a changed command ends a driver's process.
//
// It imports host/internal/system/events, host/internal/system/process and sdk/storage. It knows
// neither go-plugin nor raft, and speaks CSI to no one.
package drivers
