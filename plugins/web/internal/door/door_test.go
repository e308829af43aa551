package door

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

func TestConfig(t *testing.T) {
	for config, says := range map[string]string{
		`{}`: "", `{"actions": true, "hosts": ["Pannier.example.org"], "session": "30m"}`: "",
		`{"session": "1s"}`:                "session",
		`{"session": "soon"}`:              "session",
		`{"idle": "1s"}`:                   "idle",
		`{"cert_file": "/etc/cert.pem"}`:   "key_file",
		`{"hosts": ["https://a.example"]}`: "hosts",
		`{"hosts": ["*"]}`:                 "hosts",
		`{"password": "x"}`:                "unknown key",
	} {
		err := (&Door{}).Validate(t.Context(), []byte(config))
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", config, err, says)
		}
	}
}

// Tokens cross no network in the clear: without a certificate only this host reaches the pages.
func TestWhereItListens(t *testing.T) {
	plain := &config{}
	for address, allowed := range map[string]bool{
		"127.0.0.1:80": true, "[::1]:80": true, "0.0.0.0:80": false, "[::]:80": false, "192.0.2.1:443": false,
	} {
		at := check.Must(net.ResolveTCPAddr("tcp", address))(t)
		if err := plain.check(at); (err == nil) != allowed {
			t.Errorf("%s: %v", address, err)
		}
	}
	check.NoError(t, plain.check(&net.UnixAddr{Name: "/run/web.sock", Net: "unix"}))
	file := filepath.Join(t.TempDir(), "cert.pem")
	check.NoError(t, os.WriteFile(file, []byte("no certificate"), 0o600))
	broken := &config{CertFile: file, KeyFile: file}
	if err := broken.check(&net.TCPAddr{IP: net.IPv4zero, Port: 443}); err == nil {
		t.Error("a certificate that cannot be read is taken")
	}
}
