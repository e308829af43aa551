// Package security tests how secrets are kept at rest, and that callers with a certificate, a network or a
// socket but without permission are refused. It uses real agents, each in its own network.
package security
