package wire

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// The certificates are made by one machine for its own use and are never renewed. They never expire (RFC 5280,
// section 4.1.2.5, defines the end value), because a host whose clock is wrong must still reach its plugins.
var (
	notBefore = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	notAfter  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

// Authority is a host's identity towards its plugins: a self-signed P-256 certificate that signs the plugins'
// certificates and authenticates the host.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes a new identity.
func NewAuthority() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the host's plugin key: %w", err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "pannier host"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		// Both uses are needed: a certificate in a chain may not have a use that its root lacks.
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	cert, err := sign(template, nil, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &Authority{cert: cert, key: key}, nil
}

// ParseAuthority parses the output of MarshalPEM.
func ParseAuthority(data []byte) (*Authority, error) {
	certs, key, err := parsePEM(data)
	if err != nil {
		return nil, fmt.Errorf("read the host's plugin certificate: %w", err)
	}
	if len(certs) != 1 || !certs[0].IsCA || !key.PublicKey.Equal(certs[0].PublicKey) {
		return nil, errors.New("read the host's plugin certificate: want one authority's certificate and its key")
	}
	return &Authority{cert: certs[0], key: key}, nil
}

// MarshalPEM returns the certificate and the private key in PEM. Only the host may read the file they are written
// to.
func (a *Authority) MarshalPEM() ([]byte, error) {
	return marshalPEM(a.key, a.cert)
}

// Issue makes a certificate for one generation of a plugin, with name in it, and returns the bundle that the
// plugin loads with ServerTLS: its certificate, its private key and the host's certificate, in PEM. Only the
// plugin's user may read the file it is written to.
func (a *Authority) Issue(name string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a plugin's key: %w", err)
	}
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: "pannier plugin"},
		DNSNames: []string{name},
		KeyUsage: x509.KeyUsageDigitalSignature,
		// Not ClientAuth: with it, a plugin could call another one.
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err := sign(template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	return marshalPEM(key, cert, a.cert)
}

// ClientTLS returns the host's configuration for a connection to the plugin whose bundle was issued for name. No
// other plugin is accepted.
func (a *Authority) ClientTLS(name string) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		ServerName:   name,
		RootCAs:      roots,
		Certificates: []tls.Certificate{{Certificate: [][]byte{a.cert.Raw}, PrivateKey: a.key}},
	}
}

// ServerTLS returns a plugin's configuration: it accepts only the host that issued the bundle.
func ServerTLS(bundle []byte) (*tls.Config, error) {
	certs, key, err := parsePEM(bundle)
	if err != nil {
		return nil, fmt.Errorf("read the TLS bundle: %w", err)
	}
	if len(certs) != 2 {
		return nil, fmt.Errorf("read the TLS bundle: want the plugin's and the host's certificate, got %d", len(certs))
	}
	clients := x509.NewCertPool()
	clients.AddCert(certs[1])
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    clients,
		Certificates: []tls.Certificate{{Certificate: [][]byte{certs[0].Raw}, PrivateKey: key}},
	}, nil
}

// sign fills in the fields that all certificates share. With a nil parent the certificate is self-signed.
func sign(template, parent *x509.Certificate, pub crypto.PublicKey, signer *ecdsa.PrivateKey) (*x509.Certificate,
	error,
) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a certificate's serial number: %w", err)
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = notBefore, notAfter
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, signer)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

func marshalPEM(key *ecdsa.PrivateKey, certs ...*x509.Certificate) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a private key: %w", err)
	}
	var out bytes.Buffer
	for _, c := range certs {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: c.Raw}))
	}
	out.Write(pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}))
	return out.Bytes(), nil
}

// parsePEM returns the certificates in order, and the one private key.
func parsePEM(data []byte) (certs []*x509.Certificate, key *ecdsa.PrivateKey, err error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case pemCertificate:
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, nil, fmt.Errorf("parse a certificate: %w", err)
			}
			certs = append(certs, cert)
		case pemKey:
			parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return nil, nil, errors.New("parse the private key: it is not PKCS #8")
			}
			var ok bool
			if key, ok = parsed.(*ecdsa.PrivateKey); !ok {
				return nil, nil, fmt.Errorf("parse the private key: want ECDSA, got %T", parsed)
			}
		}
	}
	if key == nil || len(certs) == 0 {
		return nil, nil, errors.New("no certificate or no private key in it")
	}
	return certs, key, nil
}
