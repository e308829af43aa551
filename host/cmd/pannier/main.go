// Command pannier is the agent of a host and the command line that talks to it. With the build tag client it is only
// the latter, which starts in a third of the time and executes the whole program, pannier-agent, for what it cannot do.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/pannier/pannier/host/internal/cli"
	"github.com/pannier/pannier/internal/buildversion"
)

// version and releaseKey are set by the linker: -X main.version=v1.2.3. Without a release's key there is none.
var version, releaseKey string

func main() {
	os.Exit(run())
}

func run() int {
	var signals []os.Signal
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		if !signal.Ignored(s) {
			signals = append(signals, s)
		}
	}
	ctx := context.Background()
	// Without a signal in it the list would mean all of them.
	if len(signals) > 0 {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, signals...)
		defer stop()
	}
	options := cli.Options{
		Name:       os.Args[0],
		Args:       os.Args[1:],
		Stdout:     os.Stdout,
		Stderr:     os.Stderr,
		Version:    buildversion.Of(version),
		ReleaseKey: releaseKey,
	}
	addAgent(&options)
	return cli.Main(ctx, options)
}
