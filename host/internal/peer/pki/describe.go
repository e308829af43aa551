package pki

import (
	"fmt"
	"os"
	"time"
)

// Description is what a certificate says.
type Description struct {
	// Identity is empty for an authority's.
	Identity Identity
	// Authority signs others.
	Authority bool
	Subject   string
	Issuer    string
	NotBefore time.Time
	NotAfter  time.Time
	DNS       []string
	IP        []string
	// Problem is why no agent takes it; empty: it may be taken where its authority is.
	Problem string
}

// Describe reads the first certificate of a file. It does not check who signed it.
func Describe(path string) (Description, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Description{}, fmt.Errorf("read a certificate: %w", err)
	}
	certs, err := parseCertificates(text)
	if err != nil {
		return Description{}, fmt.Errorf("read a certificate: %s: %w", path, err)
	}
	cert := certs[0]
	d := Description{
		Authority: cert.IsCA, Subject: cert.Subject.String(), Issuer: cert.Issuer.String(),
		NotBefore: cert.NotBefore, NotAfter: cert.NotAfter, DNS: cert.DNSNames,
	}
	for _, ip := range cert.IPAddresses {
		d.IP = append(d.IP, ip.String())
	}
	if !d.Authority {
		if d.Identity, err = IdentityOf(cert); err != nil {
			d.Problem = err.Error()
		}
	}
	switch now := time.Now(); {
	case now.After(d.NotAfter):
		d.Problem = "it has expired"
	case now.Before(d.NotBefore):
		d.Problem = "its time has not begun: see this machine's clock"
	}
	return d, nil
}
