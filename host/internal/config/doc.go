// Package config reads what operators write: the agent's configuration and the specs of volumes and workloads, in HCL
// or
// in JSON of the same shape.
//
// What must stay true:
//   - An unknown key is refused, with the file, the line and the most similar known key. All problems of a file are
//     reported, not only the first.
//   - No error contains the value of a secret.
//   - Nothing here talks to the agent or changes the machine. Besides parsing, it only reads the files that a spec's
//     secrets_from names.
package config
