// Command envoy-bootstrap is the bootstrap plugin that makes Envoy's bootstrap for a proxy that is registered in
// Consul. The host starts it; it is not run by hand.
package main

import (
	"github.com/pannier/pannier/plugins/envoy-bootstrap/internal/generator"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/bootstrap"
)

// version is set by the linker: -X main.version=v1.2.3.
var version string

func main() {
	sdk.Main(sdk.Info{Name: "envoy-bootstrap", Version: sdk.BuildVersion(version)},
		bootstrap.Plugin(generator.New(sdk.Logger())))
}
