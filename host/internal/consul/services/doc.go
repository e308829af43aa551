// Package services keeps the services of this node's workloads in Consul, through
// the registration plugin, and has the bootstraps of their proxies made by the
// bootstrap plugin. It says which Consul is meant, and who registers: a workload only
// knows the name of the agent's consul block.
//
// What must stay true:
//
//   - A sync never takes out what is just being registered, and never puts back what
//     is just being taken out: a Register or a Deregister counts from the moment it is
//     called, and ends a sync under way, which went by the list from before.
//   - Where nothing changes a Consul is asked one blocking query after the other.
//   - A Consul that is away is told of once, in the log and as an event, and asked
//     again with a growing pause. It keeps no other Consul's services from being in sync.
//   - The codes of the plugins' errors stay as they are: the caller decides by them
//     whether to try again.
//
// It imports the SDK's kinds and the events. Plugins and workloads are functions
// that it is given.
package services
