// Command envoy-bootstrap is the bootstrap plugin that makes Envoy's bootstrap for
// a proxy that is registered in Consul. The host starts it; it is not run by hand.
package main

import (
	"github.com/pannier/pannier/plugins/envoy-bootstrap/internal/generator"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/bootstrap"
)

// version is the plugin's own semantic version, by which a host can pin it; it
// is not the tree's, which need not be one.
const version = "0.1.0"

func main() {
	sdk.Main(sdk.Info{Name: "envoy-bootstrap", Version: version}, bootstrap.Plugin(generator.New(sdk.Logger())))
}
