// Package nomad serves the part of Nomad's HTTP API (developer.hashicorp.com/nomad/api-docs) that is about volumes and
// CSI plugins, from the host's API.
//
// door.go is the plugin, server.go has the routes and answers, query.go what all queries have in common. volumes.go,
// changes.go, snapshots.go, plugins.go, nodes.go, search.go and agent.go have the calls; volume.go, spec.go and
// alloc.go turn one side's records into the other's.
//
// Invariants: every call of the host's API is made with the token of the request that it is for, and with none if that
// has none; nothing is kept between requests; records are the types of Nomad's client (MPL-2.0), and no other code of
// Nomad's is used.
package nomad
