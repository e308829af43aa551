package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"time"
)

// backdated is how far in the past a certificate's validity begins, because hosts' clocks differ.
const backdated = time.Hour

// Authority signs the certificates of hosts.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// Issued is a certificate and its private key, in PEM.
type Issued struct{ Cert, Key []byte }

// Request describes the certificate of one host.
type Request struct {
	Identity
	// DNS and IP are additional names under which its API is called, such as a load balancer's.
	DNS []string
	IP  []net.IP
	// Validity from now on.
	Validity time.Duration
}

// NewAuthority makes an authority that is valid for that long. It signs certificates of hosts, and none of other
// authorities.
func NewAuthority(validity time.Duration) (Issued, error) {
	key, private, err := newKey()
	if err != nil {
		return Issued{}, err
	}
	mark := make([]byte, 8)
	if _, err := rand.Read(mark); err != nil {
		return Issued{}, fmt.Errorf("name the authority: %w", err)
	}
	template := &x509.Certificate{
		// A unique name: while two authorities are trusted, hosts tell them apart by it.
		Subject:               pkix.Name{CommonName: "Pannier authority " + hex.EncodeToString(mark)},
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	cert, err := sign(template, nil, key.Public(), key, validity)
	return Issued{Cert: cert, Key: private}, err
}

// newKey makes a private key, which is also returned in PEM.
func newKey() (key *ecdsa.PrivateKey, private []byte, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, fmt.Errorf("make a private key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a private key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

const signingRequest = "CERTIFICATE REQUEST"

// NewRequest makes a private key and the request to sign a certificate for it (PKCS #10, RFC 2986), both in PEM. The
// request says nothing else: whose the certificate will be is up to Sign.
func NewRequest() (request, private []byte, err error) {
	key, private, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: signingRequest, Bytes: der}), private, nil
}

// ReadAuthority reads an authority's certificate and its private key.
func ReadAuthority(certFile, keyFile string) (*Authority, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf(
			"read the authority's certificate %s and its key %s: %w: make an authority with: pannier tls ca create", certFile,
			keyFile, err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("%s is the certificate of %q, which is no authority: make one with: pannier tls ca create",
			certFile, pair.Leaf.Subject)
	}
	return &Authority{cert: pair.Leaf, key: signer}, nil
}

// Issue makes a key and a certificate. It refuses names that no certificate may have, and a validity that exceeds the
// authority's own.
func (a *Authority) Issue(r Request) (Issued, error) {
	key, private, err := newKey()
	if err != nil {
		return Issued{}, err
	}
	cert, err := a.certify(r, key.Public())
	return Issued{Cert: cert, Key: private}, err
}

// Sign makes a certificate, in PEM, for the key of a request by NewRequest. It refuses what Issue refuses, but is valid
// no longer than the authority.
func (a *Authority) Sign(request []byte, r Request) (cert []byte, err error) {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != signingRequest {
		return nil, fmt.Errorf("sign a certificate: what was sent is no %s in PEM", signingRequest)
	}
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = asked.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: read the request: %w", err)
	}
	key, ok := asked.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return nil, fmt.Errorf("sign a certificate: the request has a key of the kind %s, and ECDSA is required",
			asked.PublicKeyAlgorithm)
	}
	r.Validity = min(r.Validity, time.Until(a.cert.NotAfter)-time.Second)
	return a.certify(r, key)
}

// certify makes a certificate for a key.
func (a *Authority) certify(r Request, key crypto.PublicKey) ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	if end := time.Now().Add(r.Validity); end.After(a.cert.NotAfter) {
		return nil, fmt.Errorf(
			"make a certificate: it would be valid until %s and its authority only until %s: ask for fewer days, or make a new authority with: pannier tls ca create",
			end.Format(time.DateOnly), a.cert.NotAfter.Format(time.DateOnly))
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "pannier " + string(r.Role)},
		URIs:        []*url.URL{r.URI()},
		DNSNames:    append([]string{r.DNSName()}, r.DNS...),
		IPAddresses: r.IP,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if r.Role != CLI { // agents are servers too, above all for their own machine
		template.DNSNames = append(template.DNSNames, "localhost")
		template.IPAddresses = append(template.IPAddresses, net.IPv4(127, 0, 0, 1), net.IPv6loopback)
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	cert, err := sign(template, a.cert, key, a.key, r.Validity)
	if err == nil {
		err = a.proves(cert, r.Identity)
	}
	return cert, err
}

// proves checks that a host will accept the certificate.
func (a *Authority) proves(cert []byte, id Identity) error {
	made, err := parseCertificates(cert)
	if err == nil {
		_, err = IdentityOf(made[0])
	}
	if err == nil {
		roots := x509.NewCertPool()
		roots.AddCert(a.cert)
		err = verify(tls.Certificate{Certificate: [][]byte{made[0].Raw}, Leaf: made[0]}, roots, id)
	}
	if err != nil {
		return fmt.Errorf("make a certificate: the authority %q cannot sign %s: %w", a.cert.Subject, id, err)
	}
	return nil
}

// sign fills in what all certificates have in common. A nil parent makes it self-signed.
func sign(template, parent *x509.Certificate, key crypto.PublicKey, signer crypto.Signer, validity time.Duration,
) (cert []byte, err error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a certificate's serial number: %w", err)
	}
	now := time.Now()
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = now.Add(-backdated), now.Add(validity)
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, signer)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// Write creates two files, the key (0600) and the certificate (0644). If one of them exists, nothing is written.
func (i Issued) Write(certFile, keyFile string) error {
	if err := writeNew(keyFile, i.Key, 0o600); err != nil {
		return err
	}
	if err := writeNew(certFile, i.Cert, 0o644); err != nil {
		return errors.Join(err, os.Remove(keyFile))
	}
	return nil
}

func writeNew(path string, text []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s is there already, and is not written over: move it away, or choose another folder", path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(path))
	}
	return nil
}

// parseCertificates reads every certificate of a PEM text, and refuses anything else.
func parseCertificates(text []byte) (certs []*x509.Certificate, err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("it has a %s; certificates only belong there", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("no certificate in PEM is in it")
	}
	return certs, nil
}
