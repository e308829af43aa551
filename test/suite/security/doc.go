// Package security tests with real agents, in networks of their own, what becomes of secrets
// at rest, and of those who have a certificate, a network or a socket, and no right.
package security
