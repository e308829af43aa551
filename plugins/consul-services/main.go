// Command consul-services is the registration plugin that puts workloads' services
// into Consul by way of the host's own Consul agent. The host starts it; it is not run
// by hand.
package main

import (
	"github.com/pannier/pannier/plugins/consul-services/internal/services"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/registration"
)

// version is the plugin's own semantic version, by which a host can pin it; it
// is not the tree's, which need not be one.
const version = "0.1.0"

func main() {
	sdk.Main(sdk.Info{Name: "consul-services", Version: version}, registration.Plugin(services.New()))
}
