// Package config reads what an operator writes: the agent's configuration and
// the specs of volumes and workloads, in HCL or in JSON of the same shape.
//
// What stays true:
//   - A key that nothing implements is refused, with the file, the line and the
//     nearest key that is known. All problems of a file are told, not only the
//     first one.
//   - The value of a secret is in no error.
//   - Nothing here talks to the agent or changes the machine. Reading a file that
//     a spec's secrets_from names is the one thing done beside parsing.
//
// It may import the generated API messages, sdk/service for the model of services,
// host/internal/consul/vars for the variables of specs, cluster/claim for the names of
// the modes, and host/internal/fencing/lease for which times are safe, and nothing else of this module.
package config
