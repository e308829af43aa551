package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/internal/atomicfile"
)

// Files are where an agent's certificate is, in PEM.
type Files struct {
	// CA has the authorities' certificates: one, or the old and the new one during a change.
	CA string
	// Cert has the agent's certificate, and those between it and the authority.
	Cert string
	// Key has the private key. Only its owner and group may read it. A host that has joined a cluster by a token has it
	// in the file of the certificate: both are renewed at once.
	Key string
	// CAKey has the authority's private key, on servers that sign the certificates of other hosts; empty: this one signs
	// none.
	CAKey string
}

// Renews reports whether the agent has its certificate renewed before it expires.
func (f Files) Renews() bool { return f.Cert == f.Key }

func (f Files) all() [3]string { return [3]string{f.CA, f.Cert, f.Key} }

const (
	// settling is how long after a file was written it is reread with each handshake. A second write within the
	// resolution of the file system's clock leaves the same modification time.
	settling = 2 * time.Second
	// expirySoon is the remaining validity below which the log warns about it, once a day.
	expirySoon = 30 * 24 * time.Hour
)

// Certs are an agent's certificate, its key and the authorities that it trusts. The files are checked at each
// handshake and reloaded after a change. If a new file is unusable, the previous contents stay in use.
type Certs struct {
	files Files
	log   hclog.Logger
	own   Identity

	mu      sync.Mutex
	now     *pair
	seen    [3]stamp
	settled bool
	told    *[3]stamp // the files whose problem was logged last
	warned  time.Time // when the log last warned of the expiry
}

// pair is the contents of the files at one time. It is never changed.
type pair struct {
	cert  tls.Certificate
	roots *x509.CertPool
}

// stamp identifies a version of a file.
type stamp struct {
	modified      time.Time
	size          int64
	device, inode uint64
}

// Load reads and checks the files. want is the agent's identity by its configuration. It is an error if the
// certificate has another name, role or datacenter, has expired, was not signed by the authority, or does not belong
// to the key. Each error names the file and the command to run.
func Load(files Files, want Identity, log hclog.Logger) (*Certs, error) {
	c := &Certs{files: files, log: log, own: want}
	seen, settled, err := c.look()
	if err != nil {
		return nil, err
	}
	if c.now, err = c.read(); err != nil {
		return nil, err
	}
	c.seen, c.settled = seen, settled
	c.warnExpiry()
	return c, nil
}

// Identity returns the certificate's identity.
func (c *Certs) Identity() Identity { return c.own }

// NotAfter returns when the certificate in use expires.
func (c *Certs) NotAfter() time.Time { return c.current().cert.Leaf.NotAfter }

// RenewAt returns when the certificate in use should be replaced: when a third of its time is left.
func (c *Certs) RenewAt() time.Time {
	leaf := c.current().cert.Leaf
	return leaf.NotAfter.Add(-leaf.NotAfter.Sub(leaf.NotBefore) / 3)
}

// Replace puts another certificate and its key, in PEM, into the file that has both (see Renews).
func (f Files) Replace(cert, key []byte) error {
	return atomicfile.WriteFile(f.Cert, slices.Concat(cert, key))
}

// current returns the pair for the next handshake.
func (c *Certs) current() *pair {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.warnExpiry()
	seen, settled, err := c.look()
	if err == nil && seen == c.seen && c.settled {
		return c.now
	}
	var fresh *pair
	if err == nil {
		fresh, err = c.read()
	}
	if err != nil {
		// The text of an error may contain the time, so problems that were logged are recognized by the files.
		if c.told == nil || *c.told != seen {
			c.told = &seen
			c.log.Warn("the new TLS files cannot be used: the previous ones stay in use", "error", err)
		}
		c.seen, c.settled = seen, false // it may become valid later
		return c.now
	}
	if !fresh.cert.Leaf.Equal(c.now.cert.Leaf) {
		c.log.Info("a new certificate is in use", "file", c.files.Cert, "expires", fresh.cert.Leaf.NotAfter)
		c.warned = time.Time{}
	}
	c.now, c.seen, c.settled, c.told = fresh, seen, settled, nil
	return c.now
}

// warnExpiry warns once a day that the certificate in use expires soon, or has expired.
func (c *Certs) warnExpiry() {
	left := time.Until(c.now.cert.Leaf.NotAfter)
	if left > expirySoon || time.Since(c.warned) < 24*time.Hour {
		return
	}
	c.warned = time.Now()
	c.log.Warn("the certificate expires soon: replace the file, and the agent reloads it",
		"file", c.files.Cert, "expires", c.now.cert.Leaf.NotAfter, "command", c.createCommand())
}

// look stats the files. settled reports that none was written within the last settling time.
func (c *Certs) look() (seen [3]stamp, settled bool, err error) {
	settled = true
	for i, path := range c.files.all() {
		info, err := os.Stat(path)
		if err != nil {
			return seen, false, c.unreadable(path, err)
		}
		seen[i] = stamp{modified: info.ModTime(), size: info.Size()}
		if sys, ok := info.Sys().(*syscall.Stat_t); ok {
			seen[i].device, seen[i].inode = sys.Dev, sys.Ino
		}
		settled = settled && time.Since(info.ModTime()) > settling
	}
	return seen, settled, nil
}

// read reads the files and checks that they fit together and are the agent's.
func (c *Certs) read() (*pair, error) {
	roots, err := readAuthorities(c.files.CA)
	if err != nil {
		return nil, err
	}
	if err := checkPrivate(c.files.Key); err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return nil, fmt.Errorf("read the certificate %s and its key %s: %w: create new ones with: %s", c.files.Cert,
			c.files.Key, err, c.createCommand())
	}
	id, err := IdentityOf(cert.Leaf)
	if err != nil {
		return nil, fmt.Errorf("the certificate %s: %w: make one with: %s", c.files.Cert, err, c.createCommand())
	}
	if id != c.own {
		return nil, fmt.Errorf(
			"the certificate %s is that of %s, and this agent is %s by its configuration: change name, datacenter or server { enabled } there, or make another certificate with: %s",
			c.files.Cert, id, c.own, c.createCommand())
	}
	if err := verify(cert, roots, id); err != nil {
		return nil, fmt.Errorf("the certificate %s is not good for the authority in %s: %w: make one with: %s", c.files.Cert,
			c.files.CA, err, c.createCommand())
	}
	return &pair{cert: cert, roots: roots}, nil
}

// createCommand returns the command that makes this agent's certificate.
func (c *Certs) createCommand() string {
	if c.files.Renews() {
		return "pannier cluster join TOKEN ADDRESS"
	}
	return fmt.Sprintf("pannier tls cert create -%s -name %s -dc %s", c.own.Role, c.own.Name, c.own.DC)
}

func (c *Certs) unreadable(path string, err error) error {
	switch {
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("read the TLS files: %w", err)
	case path == c.files.CA:
		return fmt.Errorf(
			"%s is not there: copy the authority's certificate (not its key) to it; pannier tls ca create makes one", path)
	default:
		return fmt.Errorf("%s is not there: make it with: %s", path, c.createCommand())
	}
}

// readAuthorities reads the authorities' certificates.
func readAuthorities(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	certs, err := parseCertificates(text)
	if err != nil {
		return nil, fmt.Errorf("the authority's certificate %s: %w", path, err)
	}
	roots := x509.NewCertPool()
	for _, cert := range certs {
		if !cert.IsCA {
			return nil, fmt.Errorf(
				"the authority's certificate %s: that of %q is none of an authority: put the file that pannier tls ca create made there", path, cert.Subject)
		}
		roots.AddCert(cert)
	}
	return roots, nil
}

// checkPrivate refuses a key that everyone may read.
func checkPrivate(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("read the private key: %w", err)
	}
	if info.Mode().Perm()&0o007 != 0 {
		return fmt.Errorf("the private key %s can be used by every user of this machine (mode %#o): run chmod 600 %s", path,
			info.Mode().Perm(), path)
	}
	return nil
}

// verify checks a certificate for every use of its role.
func verify(cert tls.Certificate, roots *x509.CertPool, id Identity) error {
	uses := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if id.Role != CLI { // agents are servers too
		uses = append(uses, x509.ExtKeyUsageServerAuth)
	}
	between := x509.NewCertPool()
	for _, der := range cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	for _, use := range uses { // given several uses, Verify accepts a certificate with any of them
		_, err := cert.Leaf.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: between, DNSName: id.DNSName(), KeyUsages: []x509.ExtKeyUsage{use},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Description has the contents of a certificate that operators need.
type Description struct {
	// Identity is empty for an authority's.
	Identity Identity
	// Authority is true if it is an authority's certificate.
	Authority bool
	Subject   string
	Issuer    string
	NotBefore time.Time
	NotAfter  time.Time
	DNS       []string
	IP        []string
	// Problem is why no agent accepts it; empty: agents that trust its authority do.
	Problem string
}

// Describe reads the first certificate of a file. It does not check who signed it.
func Describe(path string) (Description, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Description{}, fmt.Errorf("read a certificate: %w", err)
	}
	if first, _ := pem.Decode(text); first != nil {
		text = pem.EncodeToMemory(first) // the private key may follow
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
