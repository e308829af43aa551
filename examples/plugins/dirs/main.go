// Command dirs is a storage plugin for pannier. Its volumes are directories below one directory of the host,
// and a workload gets one by a bind mount. README.md describes how to run it.
package main

import (
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

// name of the plugin, and of the driver that it brings.
const name = "dirs"

func main() {
	sdk.Main(sdk.Info{Name: name, Version: "1.0.0"}, storage.Plugin(&dirs{}))
}
