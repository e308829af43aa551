package pki

import (
	"crypto/tls"
	"errors"
	"fmt"
)

// Server configures the server side of one connection with the current files: make one for each handshake
// (tls.Config.GetConfigForClient). The client must show a certificate of this datacenter. What each role may do is up
// to the caller of Server.
func (c *Certs) Server(protocols ...string) *tls.Config {
	now := c.current()
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: protocols,
		ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs:  now.roots, Certificates: []tls.Certificate{now.cert},
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := c.PeerOf(state)
			return err
		},
	}
}

// Public configures the server side of all connections to a port that also accepts clients without a certificate. A
// certificate that is shown must be valid.
func (c *Certs) Public(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cfg := c.Server(protocols...)
			cfg.ClientAuth = tls.VerifyClientCertIfGiven
			cfg.VerifyConnection = func(state tls.ConnectionState) error {
				_, err := c.PeerOf(state)
				if errors.Is(err, ErrNoCertificate) {
					return nil
				}
				return err
			}
			return cfg, nil
		},
	}
}

// Client configures the client side of one connection to an agent of this datacenter with that role, with the current
// files. An empty name accepts every agent of the role.
func (c *Certs) Client(role Role, name string, protocols ...string) *tls.Config {
	now := c.current()
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: protocols,
		ServerName: Identity{DC: c.own.DC, Role: role}.DNSName(),
		RootCAs:    now.roots, Certificates: []tls.Certificate{now.cert},
		VerifyConnection: func(state tls.ConnectionState) error {
			id, err := c.PeerOf(state)
			switch {
			case err != nil:
				return err
			case id.Role != role:
				return fmt.Errorf("%s answers, and not a %s", id, role)
			case name != "" && id.Name != name:
				return fmt.Errorf("%s answers, and not %q: the address may have gone to another host", id, name)
			case len(protocols) > 0 && state.NegotiatedProtocol == "":
				return fmt.Errorf("%s speaks none of %v", id, protocols)
			}
			return nil
		},
	}
}

// ErrNoCertificate means that the other end of a connection showed no certificate.
var ErrNoCertificate = errors.New("no certificate was shown")

// PeerOf returns who is at the other end of a connection whose certificates TLS has verified. The error is
// ErrNoCertificate, ErrNoIdentity, or that of another datacenter.
func (c *Certs) PeerOf(state tls.ConnectionState) (Identity, error) {
	if len(state.PeerCertificates) == 0 {
		return Identity{}, ErrNoCertificate
	}
	id, err := IdentityOf(state.PeerCertificates[0])
	if err == nil && id.DC != c.own.DC {
		err = fmt.Errorf("%s is of another datacenter than %s", id, c.own)
	}
	return id, err
}
