// Package cli is the pannier command: one file a noun, and what they share.
//
// What stays true:
//   - Standard output carries what was asked for, and nothing else; progress,
//     warnings and errors go to standard error.
//   - The exit code says what kind of failure it was (exit.go), and an error ends
//     with what to do next.
//   - Text from the agent, from drivers above all, reaches a terminal without
//     control characters.
//   - A secret is never an argument and never printed.
//
// It may import sdk/api, host/internal/config, host/internal/peer/pki and its own launch
// package. The agent itself is passed in by main.
package cli
