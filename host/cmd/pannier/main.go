// Command pannier is the agent of a host and the command line that talks to it. With the build tag client it is only
// the latter, which starts in a third of the time and executes the whole program, pannier-agent, for what it cannot do.
package main

import (
	"os"

	"github.com/pannier/pannier/host/internal/cli"
	"github.com/pannier/pannier/internal/buildversion"
)

// version and releaseKey are set by the linker: -X main.version=v1.2.3. Without a release's key there is none.
var version, releaseKey string

func main() {
	options := cli.Options{
		Name:       os.Args[0],
		Args:       os.Args[1:],
		Stdout:     os.Stdout,
		Stderr:     os.Stderr,
		Version:    buildversion.Of(version),
		ReleaseKey: releaseKey,
	}
	addAgent(&options)
	os.Exit(cli.Main(options))
}
