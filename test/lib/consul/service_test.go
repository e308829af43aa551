package consul

import (
	"testing"

	"github.com/pannier/pannier/sdk/service"
)

func TestConfig(t *testing.T) {
	for want, s := range map[string]service.Consul{
		"consul {\n  address = \"127.0.0.1:1\"\n  datacenter = \"dc1\"\n}\n": {
			Name:    "default",
			Address: "127.0.0.1:1", Datacenter: "dc1",
		},
		"consul \"east\" {\n  address = \"https://x\"\n  token_file = \"/t\"\n  auth_method = \"m\"\n}\n": {
			Name:    "east",
			Address: "https://x", TokenFile: "/t", AuthMethod: "m",
		},
	} {
		if got := Config(s); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
