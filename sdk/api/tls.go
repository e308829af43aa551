package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
)

// TLS configures calls to https://host:port. Each field may be empty.
type TLS struct {
	// CAFile has the certificates of the authorities that the client trusts; empty: the system's.
	CAFile string
	// CertFile and KeyFile are the client's certificate and key.
	CertFile, KeyFile string
	// ServerName is the name that the agent's certificate must have; empty: the address's host.
	ServerName string
}

// WithTLS configures calls to an address of the form https://host:port. Other addresses ignore it.
func WithTLS(t TLS) Option { return func(s *settings) { s.tls = t } }

// config reads the files and returns the configuration for an agent at host.
func (t TLS) config(host string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: host, NextProtos: []string{"h2", "http/1.1"}}
	if t.ServerName != "" {
		cfg.ServerName = t.ServerName
	}
	if t.CAFile != "" {
		text, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the certificates of the agents' authorities (PANNIER_CACERT): %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf(
				"read the certificates of the agents' authorities (PANNIER_CACERT): %s has no certificate in PEM", t.CAFile)
		}
	}
	if t.CertFile != "" || t.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read the client certificate (PANNIER_CLIENT_CERT and PANNIER_CLIENT_KEY, both or none): %w",
				err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// handshake completes a TLS handshake on raw. It closes raw if that fails.
func handshake(ctx context.Context, raw net.Conn, cfg *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}
