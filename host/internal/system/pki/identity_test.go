package pki

import (
	"crypto/x509"
	"errors"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestIdentityOf(t *testing.T) {
	good := Identity{Name: "web-1", Role: Node, DC: "dc1"}
	for name, c := range map[string]struct {
		uris, dns []string
		want      string // of the error; empty: it is good
	}{
		"good": {[]string{"pannier://dc1/node/web-1"}, []string{"node.dc1.pannier"}, ""},
		"beside others": {
			[]string{"spiffe://x/y", "pannier://dc1/node/web-1"},
			[]string{"web-1", "NODE.dc1.pannier"},
			"",
		},
		"none": {nil, []string{"node.dc1.pannier"}, "it has 0 URIs"},
		"two": {
			[]string{"pannier://dc1/node/web-1", "pannier://dc1/server/web-1"},
			[]string{"node.dc1.pannier"},
			"it has 2 URIs",
		},
		"two by case": {
			[]string{"pannier://dc1/node/web-1", "PANNIER://dc1/server/web-1"},
			[]string{"node.dc1.pannier"},
			"it has 2 URIs",
		},
		"no DNS name": {[]string{"pannier://dc1/node/web-1"}, nil, `do not have "node.dc1.pannier"`},
		"another role's": {
			[]string{"pannier://dc1/node/web-1"},
			[]string{"server.dc1.pannier"},
			`do not have "node.dc1.pannier"`,
		},
		"another dc's": {
			[]string{"pannier://dc1/node/web-1"},
			[]string{"node.dc2.pannier"},
			`do not have "node.dc1.pannier"`,
		},
		"a wildcard": {
			[]string{"pannier://dc1/node/web-1"},
			[]string{"*.dc1.pannier"},
			`do not have "node.dc1.pannier"`,
		},
		"role": {
			[]string{"pannier://dc1/admin/web-1"},
			[]string{"admin.dc1.pannier"},
			`the role "admin" is not one of server, node, cli`,
		},
		"role by case": {
			[]string{"pannier://dc1/Server/web-1"},
			[]string{"server.dc1.pannier"},
			`the role "Server" is not one of`,
		},
		"role with a blank": {
			[]string{"pannier://dc1/node%20/web-1"},
			[]string{"node.dc1.pannier"},
			`the role "node%20" is not one of`,
		},
		"too long a path": {
			[]string{"pannier://dc1/node/web-1/server"},
			[]string{"node.dc1.pannier"},
			"is not pannier://DATACENTER/ROLE/NAME",
		},
		"too short a path": {
			[]string{"pannier://dc1/node"},
			[]string{"node.dc1.pannier"},
			"is not pannier://DATACENTER/ROLE/NAME",
		},
		"opaque": {
			[]string{"pannier:dc1/node/web-1"},
			[]string{"node.dc1.pannier"},
			"is not pannier://DATACENTER/ROLE/NAME",
		},
		"empty name": {[]string{"pannier://dc1/node/"}, []string{"node.dc1.pannier"}, `the name "" may have`},
		"parent":     {[]string{"pannier://dc1/node/.."}, []string{"node.dc1.pannier"}, `the name ".." may have`},
		"empty dc":   {[]string{"pannier:///node/web-1"}, []string{"node..pannier"}, `the datacenter "" may have`},
		"port": {
			[]string{"pannier://dc1:80/node/web-1"},
			[]string{"node.dc1.pannier"},
			`the datacenter "dc1:80" may have`,
		},
		"user": {
			[]string{"pannier://u@dc1/node/web-1"},
			[]string{"node.dc1.pannier"},
			`the datacenter "u@dc1" may have`,
		},
		"query": {
			[]string{"pannier://dc1/node/web-1?a=b"},
			[]string{"node.dc1.pannier"},
			`the name "web-1?a=b" may have`,
		},
		"fragment": {
			[]string{"pannier://dc1/node/web-1#a"},
			[]string{"node.dc1.pannier"},
			`the name "web-1#a" may have`,
		},
		"escape": {
			[]string{"pannier://dc1/node/%77eb-1"},
			[]string{"node.dc1.pannier"},
			`the name "%77eb-1" may have`,
		},
		"hidden slash": {
			[]string{"pannier://dc1/node%2Fweb-1"},
			[]string{"node.dc1.pannier"},
			`is not pannier://DATACENTER/ROLE/NAME`,
		},
	} {
		cert := &x509.Certificate{DNSNames: c.dns}
		for _, text := range c.uris {
			uri, err := url.Parse(text)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			cert.URIs = append(cert.URIs, uri)
		}
		id, err := IdentityOf(cert)
		if c.want == "" && (err != nil || id != good) {
			t.Errorf("%s: got %v, %v", name, id, err)
		}
		if c.want != "" && (!errors.Is(err, ErrNoIdentity) || !strings.Contains(err.Error(), c.want) || id != Identity{}) {
			t.Errorf("%s: got %v, %v, want %q", name, id, err, c.want)
		}
	}
}

// Each valid identity can be read from its own names, and nothing else can.
func TestIdentityOfItsOwnNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := Identity{
			Name: rapid.StringMatching(`[a-zA-Z0-9\-_.]{1,128}`).Draw(t, "name"),
			Role: rapid.SampledFrom(roles).Draw(t, "role"),
			DC:   rapid.StringMatching(`[a-zA-Z0-9\-_.]{1,128}`).Draw(t, "dc"),
		}
		uri, err := url.Parse(id.String())
		if err != nil {
			t.Fatal(err)
		}
		got, err := IdentityOf(&x509.Certificate{URIs: []*url.URL{uri}, DNSNames: []string{id.DNSName()}})
		if id.check() == nil && (err != nil || got != id) || id.check() != nil && err == nil {
			t.Fatalf("%+v came back as %+v, %v", id, got, err)
		}
	})
}

func FuzzIdentityOf(f *testing.F) {
	f.Add("pannier://dc1/node/web-1")
	f.Fuzz(func(t *testing.T, text string) {
		uri, err := url.Parse(text)
		if err != nil {
			return
		}
		cert := &x509.Certificate{URIs: []*url.URL{uri}}
		for _, role := range roles {
			cert.DNSNames = append(cert.DNSNames, Identity{Role: role, DC: uri.Host}.DNSName())
		}
		if id, err := IdentityOf(cert); err == nil && id.String() != text && id.String() != uri.String() {
			t.Fatalf("%q is taken for %q", text, id)
		}
	})
}
