// Command pannier-agent is the agent of a host, and the commands that need what it consists of.
package main

import (
	"os"

	"github.com/pannier/pannier/host/cmd/pannier-agent/agentcli"
	"github.com/pannier/pannier/host/internal/cli"
	"github.com/pannier/pannier/internal/buildversion"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/wire"
)

// version is set by the linker: -X main.version=v1.2.3.
var version string

func main() {
	if os.Getenv(wire.EnvDebugSocket) != "" { // an agent has started it in place of a plugin that is debugged
		sdk.Main(sdk.Info{Name: "relay"}, sdk.Plugin{})
	}
	os.Exit(agentcli.Main(cli.Options{
		Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr, Version: buildversion.Of(version),
	}))
}
