// Package vars replaces the variables of a workload's spec, such as
// ${node.name} or ${port.http}. A spec is read where neither the node nor its ports are
// known (host/internal/config), so variables stay in it as text. The agent replaces
// those of services, and who runs a workload's programs those of exec and sidecar.
//
// It imports sdk/service and the standard library only. Values are the caller's; the
// names are here (names.go), for those who read a spec and those who fill it in.
package vars
