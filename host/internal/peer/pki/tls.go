package pki

import (
	"crypto/tls"
	"errors"
	"fmt"
)

// Server is the called side of one connection, with the files as they are now: make
// one for each handshake (tls.Config.GetConfigForClient). The caller has to show a
// certificate of this datacenter; which role may do what is for the caller of Server.
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

// Public is the called side of every connection to a port that also answers who shows
// no certificate. One that is shown has to be good.
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

// Client is the calling side of one connection to an agent of this datacenter with that
// role, with the files as they are now. An empty name takes every agent of the role.
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

// ErrNoCertificate is a connection whose other end showed none.
var ErrNoCertificate = errors.New("no certificate was shown")

// PeerOf is who is at the other end of a connection whose certificates TLS has
// verified. The error is ErrNoCertificate or ErrNoIdentity, or tells of another datacenter.
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
