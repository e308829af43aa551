// Package controllers picks, checks and calls the controller side of CSI drivers: for the workloads'
// attach step, the leader's release of claims, and the API. On a single host the controller is that
// of this node's driver; the leader of a cluster picks one of the healthy ones (pick.go).
//
// What must stay true:
//
//   - An attach and a detach of one volume on one node never overlap, and whether to detach is
//     decided while no attach can start.
//   - An unknown or unhealthy driver is an error at once, unless the call may wait.
//   - Another controller is tried only if the node or its driver is unreachable. A driver's answer
//     is final. The error names every node that was tried.
//   - A volume's secrets are opened for one call and kept nowhere.
//   - A driver's error keeps its gRPC code (status.FromError) however it is wrapped.
//   - The package knows neither go-plugin nor raft; what the ledger knows of nodes comes through
//     Cluster.
//
// The two node-side calls that an API request makes, expansion and usage of a mounted volume, are
// here too.
package controllers
