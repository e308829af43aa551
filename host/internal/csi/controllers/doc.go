// Package controllers is the one place where the controller side of a CSI driver
// is picked, checked and called: by the workloads' attach step, by the leader's
// release of claims, and by the API. On one host the controller is that of this
// node's driver; the leader of several picks one of those that are healthy (pick.go).
//
// What must stay true:
//
//   - An attach and a detach of one volume on one node never overlap, and a
//     detach is decided while no attach can come in between.
//   - A driver that is unknown or unhealthy is an error at once: whoever can
//     wait, waits elsewhere.
//   - Another controller is asked only where the node or its driver is away, and what
//     a driver has answered stands. The error names every node that was tried.
//   - A volume's secrets are opened for one call and kept nowhere.
//   - A driver's error keeps its gRPC code (status.FromError) under all that is
//     said around it.
//
// The two calls of the node side that an API request makes, expansion and usage
// of what is mounted here, go the same way (node.go).
//
// It imports cluster/claim, host/internal/csi/drivers and sdk/storage; it knows
// neither go-plugin nor raft, and what the ledger says of nodes it is told (Cluster).
package controllers
