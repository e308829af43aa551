// Package security tests, with real agents in networks of their own, how secrets are kept at
// rest, and that callers with a certificate, a network or a socket but without the right are
// refused.
package security
