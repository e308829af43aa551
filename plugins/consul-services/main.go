// Command consul-services is the registration plugin that registers workloads' services in Consul through the
// host's own Consul agent. The host starts it; it is not run by hand.
package main

import (
	_ "embed"
	"strings"

	"github.com/pannier/pannier/plugins/consul-services/internal/services"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/registration"
)

// version is the plugin's own: it does not change with the agent's.
//
//go:embed VERSION
var version string

func main() {
	sdk.Main(sdk.Info{Name: "consul-services", Version: strings.TrimSpace(version)}, registration.Plugin(services.New()))
}
