// Package services puts the services of workloads into Consul and keeps them there.
//
// A service is registered with the local Consul agent, with its sidecar nested in it
// (Consul's sidecar_service): Consul then picks the sidecar's port and checks, keeps
// the port on each further registration, and takes the two out together. The agent
// tells the catalog.
//
// Sync watches the catalog, where every loss shows in the end: what the agent has lost
// it takes out of the catalog, and what others write there has never been at the
// agent. It asks /v1/internal/ui/node/:node, the only endpoint that has a node's services
// and checks in one answer and blocks until one of them changes, so a pass without
// drift is one query. What is wrong at the agent is registered there again; what is
// right at the agent and wrong in the catalog is given a moment, since the agent may be
// about to tell, and is then written to the catalog: an agent that believes to be in
// sync tells nothing.
//
// What must stay true:
//   - only what bears the owner's marks (Meta pannier-cluster and pannier-node) is
//     removed;
//   - what Consul gives back for a registration of ours is equal to it (compare.go),
//     whatever Consul and its central configuration add: a service never flaps;
//   - nothing authoritative is kept here. The node's name and the last seen tags of
//     services with EnableTagOverride are memories that may be lost.
//
// What Consul tells nobody cannot be compared: of a check, its headers, body,
// thresholds, TLS settings and initial status. What a check asks, and how often, is in
// its notes for that purpose.
//
// The Consul token in token_file needs this policy, in Consul's HCL:
//
//	service_prefix "" { policy = "write" }
//	node_prefix    "" { policy = "read" }
//	agent_prefix   "" { policy = "read" }
//
// and, for ingress and terminating gateways, whose config entries are written:
//
//	mesh = "write"
//
// It may import sdk/registration, sdk/service, plugins/internal/consul, consul/api and
// gRPC's codes.
package services
