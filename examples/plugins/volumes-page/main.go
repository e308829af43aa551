// Command volumes-page is a front door for pannier: a web page with the volumes of the cluster. README.md describes how
// to run it.
package main

import (
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/frontend"
)

func main() {
	sdk.Main(sdk.Info{Name: "volumes-page", Version: "1.0.0"}, frontend.Plugin(&page{}))
}
