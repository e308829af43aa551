// Command sids is the identity plugin that gets Consul tokens for workloads' services: it mints them with a token
// that may write ACLs, or logs in with a JWT. The host starts it; it is not run by hand. `sids setup` is what
// `pannier setup consul` runs.
package main

import (
	"context"
	_ "embed"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/pannier/pannier/plugins/sids/internal/setup"
	"github.com/pannier/pannier/plugins/sids/internal/tokens"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/identity"
)

// version is the plugin's own: it does not change with the agent's.
//
//go:embed VERSION
var version string

func main() {
	if len(os.Args) == 2 && os.Args[1] == "setup" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := setup.Main(ctx, os.Stdin, os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	sdk.Main(sdk.Info{Name: "sids", Version: strings.TrimSpace(version)}, identity.Plugin(tokens.New()))
}
