// Command nomad-api is the front door through which Nomad's command line, its Terraform provider and other clients of
// Nomad's HTTP API use Pannier's volumes and drivers. The host starts it; it is not run by hand. DESIGN.md describes
// what it answers, and how Nomad's words are mapped.
package main

import (
	_ "embed"
	"strings"

	"github.com/pannier/pannier/plugins/internal/frontdoor"
	"github.com/pannier/pannier/plugins/nomad-api/internal/nomad"
	"github.com/pannier/pannier/sdk"
)

// version is the plugin's own: it does not change with the agent's.
//
//go:embed VERSION
var version string

func main() {
	sdk.Main(sdk.Info{Name: "nomad-api", Version: strings.TrimSpace(version)}, frontdoor.Plugin(&nomad.Door{}))
}
