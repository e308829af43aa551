// Command nomad-api is the front door through which Nomad's command line, its Terraform provider and other clients of
// Nomad's HTTP API use Pannier's volumes and drivers. The host starts it; it is not run by hand. DESIGN.md says what it
// answers, and how Nomad's words are mapped.
package main

import (
	"github.com/pannier/pannier/plugins/nomad-api/internal/nomad"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/frontend"
)

// version is set by the linker: -X main.version=v1.2.3.
var version string

func main() {
	sdk.Main(sdk.Info{Name: "nomad-api", Version: sdk.BuildVersion(version)}, frontend.Plugin(nomad.NewDoor()))
}
