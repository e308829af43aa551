package config

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

func TestFrontends(t *testing.T) {
	a, _, err := load(t, Source{}, map[string]string{
		"1.hcl": `
plugin "page" {
  listen "http" {
    address = ":8080"
  }
  listen "local" {
    address = "unix:///run/page.sock"
    mode    = "0660"
    owner   = "root"
    group   = "www"
  }
  api {
    policy = "page"
  }
}
plugin "plain" {}`,
		"2.json": `{"plugin": {"page": {"listen": {"http": {"address": "[::1]:80"}}, "api": {"token_file": "/etc/t"}}}}`,
	})
	check.NoError(t, err)
	want := &Frontend{
		Sockets: []Socket{
			{Name: "local", Address: "unix:///run/page.sock", Mode: 0o660, Owner: "root", Group: "www"},
			{Name: "http", Address: "[::1]:80", Mode: 0o600},
		},
		API: &API{TokenFile: "/etc/t"},
	}
	if got := a.Plugins[0].Frontend; !reflect.DeepEqual(got, want) || a.Plugins[1].Frontend != nil {
		t.Errorf("got %+v, %+v", got, a.Plugins[1].Frontend)
	}
}

// The package's configuration is the same on servers and on other hosts.
func TestPackagedDoorOnANodeWithACLs(t *testing.T) {
	packaged, err := os.ReadFile("../../../packaging/agent.hcl")
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = load(t, Source{}, map[string]string{"agent.hcl": string(packaged), "cluster.hcl": `
bind_addr  = "192.0.2.1"
retry_join = ["192.0.2.2"]
server { enabled = false }
acl { enabled = true }
tls {
  ca_file   = "/ca.pem"
  cert_file = "/cert.pem"
  key_file  = "/key.pem"
}
`})
	if err != nil && strings.Contains(err.Error(), "docker-volume") {
		t.Error(err)
	}
}

func TestBadFrontends(t *testing.T) {
	listen := func(text string) string { return "plugin \"p\" {\n  listen \"a\" {\n    " + text + "\n  }\n}" }
	for pair := range slices.Chunk([]string{
		listen(`mode = "0600"`), `plugin "p": listen "a": address: is required`,
		listen(`address = "localhost:80"`), `3: plugin "p": listen "a": address: "localhost:80" is neither`,
		listen(`address = "127.0.0.1:0"`), `address: "127.0.0.1:0" is neither`,
		listen(`address = "unix://run/a"`),
		`3: plugin "p": listen "a": address: "unix://run/a" is not unix:// and an absolute path`,
		listen(`address = "unix:///run/../a"`), `is not a clean path`,
		listen("address = \"unix:///a\"\n    mode = \"0680\""), `4: plugin "p": listen "a": mode: "0680" is no mode`,
		listen("address = \":80\"\n    mode = \"0660\""), `4: plugin "p": listen "a": mode: is for unix sockets only`,
		"plugin \"p\" {\n  listen \"a,b\" {\n    address = \":80\"\n  }\n}", `2: plugin "p": listen: name "a,b"`,
		"plugin \"p\" {\nlisten \"a\" {\naddress = \":80\"\n}\nlisten \"a\" {\naddress = \":81\"\n}\n}",
		`5: plugin "p": listen "a" given twice`,
		"plugin \"p\" {\nlisten \"a\" {\naddress = \":80\"\n}\n}\nplugin \"q\" {\nlisten \"a\" {\naddress = \":80\"\n}\n}",
		`6: plugin "q": listen "a": address: ":80" is that of plugin "p" too`,
		"plugin \"p\" {\napi {\npolicy = \"p\"\ntoken_file = \"/t\"\n}\n}", `api: policy: token_file names a token`,
		"acl { enabled = true }\nplugin \"p\" {\napi {}\n}", `2: plugin "p": api: policy is required where ACLs are on`,
	}, 2) {
		src, want := pair[0], pair[1]
		_, _, err := load(t, Source{}, map[string]string{"a.hcl": src})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
