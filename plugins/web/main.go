// Command web is the front door for people: pages of a cluster's volumes, nodes, workloads and plugins in a browser.
// The host starts it; it is not run by hand. DESIGN.md describes how it is built and what it defends against.
package main

import (
	_ "embed"
	"strings"

	"github.com/pannier/pannier/plugins/internal/frontdoor"
	"github.com/pannier/pannier/plugins/web/internal/door"
	"github.com/pannier/pannier/sdk"
)

// version is the plugin's own: it does not change with the agent's.
//
//go:embed VERSION
var version string

func main() {
	sdk.Main(sdk.Info{Name: "web", Version: strings.TrimSpace(version)}, frontdoor.Plugin(&door.Door{}))
}
