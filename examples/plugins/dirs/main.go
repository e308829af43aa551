// Command dirs is a storage plugin for pannier. Its volumes are directories below one directory of the host,
// and a workload gets one by a bind mount. README.md describes how to run it.
package main

import (
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

func main() {
	sdk.Main(sdk.Info{Name: "dirs", Version: "1.0.0"}, storage.Plugin(&dirs{}))
}
