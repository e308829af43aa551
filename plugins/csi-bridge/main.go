// Command csi-bridge is the storage plugin that reaches CSI drivers over their
// sockets. The host starts it; it is not run by hand.
package main

import (
	_ "embed"
	"strings"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/bridge"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

// version is the plugin's own: it does not change with the agent's.
//
//go:embed VERSION
var version string

func main() {
	sdk.Main(sdk.Info{Name: "csi-bridge", Version: strings.TrimSpace(version)}, storage.Plugin(bridge.New(sdk.Logger())))
}
