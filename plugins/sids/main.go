// Command sids is the identity plugin that gives workloads' services their Consul
// tokens: it mints them with a token that may write ACLs, or logs in with a JWT. The
// host starts it; it is not run by hand.
package main

import (
	"github.com/pannier/pannier/plugins/sids/internal/tokens"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/identity"
)

// version is the plugin's own semantic version, by which a host can pin it; it
// is not the tree's, which need not be one.
const version = "0.1.0"

func main() {
	sdk.Main(sdk.Info{Name: "sids", Version: version}, identity.Plugin(tokens.New()))
}
