// Command consul-services is the registration plugin that registers workloads' services in Consul through the
// host's own Consul agent. The host starts it; it is not run by hand.
package main

import (
	"github.com/pannier/pannier/plugins/consul-services/internal/services"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/registration"
)

// version is set by the linker: -X main.version=v1.2.3.
var version string

func main() {
	sdk.Main(sdk.Info{Name: "consul-services", Version: sdk.BuildVersion(version)}, registration.Plugin(services.New()))
}
