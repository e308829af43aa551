// Command docker-volume is the front door through which Docker and Podman use volumes: their volume plugin protocol.
// The host starts it; it is not run by hand. DESIGN.md describes how it keeps volumes exactly as long as containers
// have them.
package main

import (
	_ "embed"
	"strings"

	"github.com/pannier/pannier/plugins/docker-volume/internal/volumes"
	"github.com/pannier/pannier/plugins/internal/frontdoor"
	"github.com/pannier/pannier/sdk"
)

// version is the plugin's own: it does not change with the agent's.
//
//go:embed VERSION
var version string

func main() {
	sdk.Main(sdk.Info{Name: "docker-volume", Version: strings.TrimSpace(version)}, frontdoor.Plugin(&volumes.Door{}))
}
