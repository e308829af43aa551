// Package frontdoors works with plugins of the kind frontend: it tells their processes which of them accepts
// connections (serve.go), and passes their calls of the API on, with the rights that they have (token.go). Their
// listening sockets are held by package hostservices.
//
// Invariants: a process is drained only after another one serves; a front door has a token with its configured policy
// and nothing else, and without an api block it has no API.
package frontdoors
