// Command pannier is the command line that talks to a host's agent. It executes pannier-agent for the agent itself.
package main

import (
	"os"

	"github.com/pannier/pannier/host/internal/cli"
	"github.com/pannier/pannier/internal/buildversion"
)

// version and releaseKey are set by the linker: -X main.version=v1.2.3. Without a release's key there is none.
var version, releaseKey string

func main() {
	os.Exit(cli.Main(cli.Options{
		Name: os.Args[0], Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr, Version: buildversion.Of(version),
		ReleaseKey: releaseKey,
	}))
}
