package wire

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"
)

func authority(t *testing.T) *Authority {
	t.Helper()
	a, err := NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func serverTLS(t *testing.T, a *Authority, name string) *tls.Config {
	t.Helper()
	bundle, err := a.Issue(name)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := ServerTLS(bundle)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// handshake returns the errors of both sides of a connection.
func handshake(client, server *tls.Config) (clientErr, serverErr error) {
	a, b := net.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- tls.Server(b, server).Handshake()
		_ = b.Close()
	}()
	clientErr = tls.Client(a, client).Handshake()
	_ = a.Close()
	return clientErr, <-done
}

func TestHostAndItsPlugin(t *testing.T) {
	a := authority(t)
	server := serverTLS(t, a, "one.plugin")
	// Also after a restart, when the host has read its identity from its file.
	data, err := a.MarshalPEM()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseAuthority(data)
	if err != nil {
		t.Fatal(err)
	}
	for name, host := range map[string]*Authority{"the host": a, "the host after a restart": again} {
		if c, s := handshake(host.ClientTLS("one.plugin"), server); c != nil || s != nil {
			t.Errorf("%s: %v, %v", name, c, s)
		}
	}
}

func TestOthersAreRefused(t *testing.T) {
	a, other := authority(t), authority(t)
	one, two := serverTLS(t, a, "one.plugin"), serverTLS(t, a, "two.plugin")
	plugin := a.ClientTLS("one.plugin")
	plugin.Certificates = two.Certificates // a plugin that calls another one
	stranger := other.ClientTLS("one.plugin")
	stranger.RootCAs = a.ClientTLS("").RootCAs
	nobody := a.ClientTLS("one.plugin")
	nobody.Certificates = nil
	for name, tc := range map[string]struct {
		client, server *tls.Config
		byHost         bool
	}{
		"another generation":        {a.ClientTLS("one.plugin"), two, true},
		"a plugin of another host":  {a.ClientTLS("one.plugin"), serverTLS(t, other, "one.plugin"), true},
		"a plugin as host":          {plugin, one, false},
		"another host":              {stranger, one, false},
		"a client with no identity": {nobody, one, false},
	} {
		c, s := handshake(tc.client, tc.server)
		err := s
		if tc.byHost {
			err = c
		}
		if err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: host %v, plugin %v", name, c, s)
		}
	}
}

func TestInvalidBundles(t *testing.T) {
	a := authority(t)
	bundle, err := a.Issue("x")
	if err != nil {
		t.Fatal(err)
	}
	own, err := a.MarshalPEM()
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"nothing": nil, "text": []byte("x"), "half": bundle[:len(bundle)/2],
		"the host's": own,
	} {
		if _, err := ServerTLS(data); err == nil {
			t.Errorf("%s: taken for a bundle", name)
		}
	}
	for name, data := range map[string][]byte{
		"nothing": nil, "text": []byte("x"), "half": own[:len(own)/2],
		"a plugin's": bundle,
	} {
		if _, err := ParseAuthority(data); err == nil {
			t.Errorf("%s: taken for an authority", name)
		}
	}
}
