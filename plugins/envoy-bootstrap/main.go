// Command envoy-bootstrap is the bootstrap plugin that makes Envoy's bootstrap for a proxy that is registered in
// Consul. The host starts it; it is not run by hand.
package main

import (
	_ "embed"
	"strings"

	"github.com/pannier/pannier/plugins/envoy-bootstrap/internal/envoy"
	"github.com/pannier/pannier/plugins/envoy-bootstrap/internal/generator"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/bootstrap"
)

// version is the plugin's own: it does not change with the agent's.
//
//go:embed VERSION
var version string

func main() {
	envoy.RenderChild()
	sdk.Main(sdk.Info{Name: "envoy-bootstrap", Version: strings.TrimSpace(version)},
		bootstrap.Plugin(generator.New(sdk.Logger())))
}
