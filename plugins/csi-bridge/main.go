// Command csi-bridge is the storage plugin that reaches CSI drivers over their
// sockets. The host starts it; it is not run by hand.
package main

import (
	"github.com/pannier/pannier/plugins/csi-bridge/internal/bridge"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

// version is set by the linker: -X main.version=v1.2.3.
var version string

func main() {
	sdk.Main(sdk.Info{Name: "csi-bridge", Version: sdk.BuildVersion(version)}, storage.Plugin(bridge.New(sdk.Logger())))
}
