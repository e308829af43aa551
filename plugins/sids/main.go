// Command sids is the identity plugin that gets Consul tokens for workloads' services: it mints them with a token
// that may write ACLs, or logs in with a JWT. The host starts it; it is not run by hand.
package main

import (
	"github.com/pannier/pannier/plugins/sids/internal/tokens"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/identity"
)

// version is set by the linker: -X main.version=v1.2.3.
var version string

func main() {
	sdk.Main(sdk.Info{Name: "sids", Version: sdk.BuildVersion(version)}, identity.Plugin(tokens.New()))
}
