// Package pkitest makes certificates of hosts for tests. It imports host/internal/system/pki.
package pkitest

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/internal/atomicfile"
)

// DC is the datacenter of every certificate.
const DC = "dc1"

// Authority signs the certificates of one test.
type Authority struct {
	*pki.Authority
	// CertFile and KeyFile are the authority's own.
	CertFile, KeyFile string
}

// New makes an authority in a folder of its own.
func New(t testing.TB) Authority {
	t.Helper()
	dir := t.TempDir()
	a := Authority{CertFile: filepath.Join(dir, "ca.pem"), KeyFile: filepath.Join(dir, "ca-key.pem")}
	made, err := pki.NewAuthority(48 * time.Hour)
	if err == nil {
		err = made.Write(a.CertFile, a.KeyFile)
	}
	if err == nil {
		a.Authority, err = pki.ReadAuthority(a.CertFile, a.KeyFile)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Files makes a certificate for a host, in a folder of its own.
func (a Authority) Files(t testing.TB, role pki.Role, name string) pki.Files {
	t.Helper()
	dir := t.TempDir()
	files := pki.Files{CA: a.CertFile, Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	a.Replace(t, files, role, name)
	return files
}

// Replace puts a new certificate and its key in the place of those in the files.
func (a Authority) Replace(t testing.TB, files pki.Files, role pki.Role, name string) {
	t.Helper()
	issued, err := a.Issue(pki.Request{Identity: pki.Identity{Name: name, Role: role, DC: DC}, Validity: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string][]byte{files.Cert: issued.Cert, files.Key: issued.Key} {
		if err := atomicfile.WriteFile(path, text); err != nil {
			t.Fatal(err)
		}
	}
}

// Expire puts one that has ended in the place of the certificate in the files. Its key stays.
func (a Authority) Expire(t testing.TB, files pki.Files) {
	t.Helper()
	signer, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	template := *pair.Leaf
	template.NotBefore, template.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	cert, err := x509.CreateCertificate(rand.Reader, &template, signer.Leaf, pair.Leaf.PublicKey, signer.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		0o600); err != nil {
		t.Fatal(err)
	}
}

// Certs makes a certificate for a host and loads it.
func (a Authority) Certs(t testing.TB, role pki.Role, name string) *pki.Certs {
	t.Helper()
	certs, err := pki.Load(a.Files(t, role, name), pki.Identity{Name: name, Role: role, DC: DC}, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	return certs
}
