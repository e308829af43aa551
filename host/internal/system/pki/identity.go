package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Role is what a certificate allows its holder to do.
type Role string

// The roles. A server is also a node, and needs only one certificate.
const (
	// Server keeps the ledger: it may speak raft, and call nodes.
	Server Role = "server"
	// Node runs workloads: it may call servers, for itself.
	Node Role = "node"
	// CLI is a person or a program that calls the API.
	CLI Role = "cli"
)

var roles = []Role{Server, Node, CLI}

// Identity is what a certificate says about its holder.
type Identity struct {
	// Name is the agent's; for a CLI, the certificate's holder's.
	Name string
	Role Role
	// DC is the datacenter.
	DC string
}

// scheme of the URI that names a host.
const scheme = "pannier"

// URI returns the alternative name that holds the identity.
func (id Identity) URI() *url.URL {
	return &url.URL{Scheme: scheme, Host: id.DC, Path: "/" + string(id.Role) + "/" + id.Name}
}

// DNSName returns the alternative name that callers check: the role's.
func (id Identity) DNSName() string { return string(id.Role) + "." + id.DC + "." + scheme }

// String is the URI.
func (id Identity) String() string { return id.URI().String() }

// validName matches the names of agents and datacenters, as in the agent's configuration.
var validName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9\-_.]{1,128}$`) })

// check refuses an identity that no certificate may have.
func (id Identity) check() error {
	if !slices.Contains(roles, id.Role) {
		return fmt.Errorf("the role %q is not one of server, node, cli", id.Role)
	}
	for what, name := range map[string]string{"name": id.Name, "datacenter": id.DC} {
		if !validName().MatchString(name) || name == "." || name == ".." {
			return fmt.Errorf("the %s %q may have letters, digits and - _ . only, and 1 to 128 of them", what, name)
		}
	}
	return nil
}

// ErrNoIdentity means that a certificate has no identity, or not exactly in the form that it must have.
var ErrNoIdentity = errors.New("the certificate names no host of Pannier")

// IdentityOf reads the identity of a certificate's holder. It does not check who signed it. The error is
// ErrNoIdentity.
func IdentityOf(cert *x509.Certificate) (Identity, error) {
	var found []*url.URL
	for _, uri := range cert.URIs {
		if strings.EqualFold(uri.Scheme, scheme) {
			found = append(found, uri)
		}
	}
	if len(found) != 1 {
		return Identity{}, fmt.Errorf("%w: it has %d URIs %s://DATACENTER/ROLE/NAME among its alternative names, and needs 1",
			ErrNoIdentity, len(found), scheme)
	}
	id, err := ParseIdentity(found[0].String())
	if err != nil {
		return Identity{}, err
	}
	if !slices.ContainsFunc(cert.DNSNames, func(name string) bool { return strings.EqualFold(name, id.DNSName()) }) {
		return Identity{}, fmt.Errorf("%w: its DNS names do not have %q", ErrNoIdentity, id.DNSName())
	}
	return id, nil
}

// ParseIdentity is the reverse of String. The error is ErrNoIdentity.
func ParseIdentity(text string) (Identity, error) {
	path, ours := strings.CutPrefix(text, scheme+"://")
	parts := strings.Split(path, "/")
	if !ours || len(parts) != 3 {
		return Identity{}, fmt.Errorf("%w: %q is not %s://DATACENTER/ROLE/NAME", ErrNoIdentity, text, scheme)
	}
	id := Identity{DC: parts[0], Role: Role(parts[1]), Name: parts[2]}
	// This refuses everything else that a URI can have: a user, a query, an escape.
	if err := id.check(); err != nil {
		return Identity{}, fmt.Errorf("%w: %q: %w", ErrNoIdentity, text, err)
	}
	return id, nil
}
