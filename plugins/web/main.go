// Command web is the front door for people: pages of a cluster's volumes, nodes, workloads and plugins in a browser.
// The host starts it; it is not run by hand. DESIGN.md says how it is built and what it defends against.
package main

import (
	"github.com/pannier/pannier/plugins/web/internal/door"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/frontend"
)

// version is set by the linker: -X main.version=v1.2.3.
var version string

func main() {
	sdk.Main(sdk.Info{Name: "web", Version: sdk.BuildVersion(version)}, frontend.Plugin(&door.Door{}))
}
