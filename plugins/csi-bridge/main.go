// Command csi-bridge is the storage plugin that reaches CSI drivers over their
// sockets. The host starts it; it is not run by hand.
package main

import (
	"github.com/pannier/pannier/plugins/csi-bridge/internal/bridge"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

// version is the plugin's own semantic version, by which a host can pin it; it
// is not the tree's, which need not be one.
const version = "0.1.0"

func main() {
	sdk.Main(sdk.Info{Name: "csi-bridge", Version: version}, storage.Plugin(bridge.New(sdk.Logger())))
}
