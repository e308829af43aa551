// Command dirs is a storage plugin for pannier: its volumes are folders below one
// folder of the host, and a workload gets one by a bind mount. README.md tells how to
// run it.
package main

import (
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

func main() {
	sdk.Main(sdk.Info{Name: "dirs", Version: "1.0.0"}, storage.Plugin(&dirs{}))
}
