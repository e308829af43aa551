//go:build !client

package cli

import (
	"context"
	"errors"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/pannier/pannier/host/internal/system/tracing"
)

// The whole program has every command.

type tracer = tracing.Tracer

// openTraces returns nil if nothing names a collector.
func (a *app) openTraces(ctx context.Context) (*tracer, error) {
	return tracing.Open(ctx, tracing.Config{
		Program: "pannier", Version: a.opts.Version, Log: hclog.New(&hclog.LoggerOptions{Output: a.err}),
	})
}

// become is for the client only.
func (a *app) become(*cobra.Command, []string) error { return nil }

// wants says which nouns to make: all.
func (a *app) wants(string) bool { return true }

// wrongUsage describes an error of the command line.
func (a *app) wrongUsage(root *cobra.Command, err error) error {
	if usage := (*usageError)(nil); errors.As(err, &usage) {
		return err
	}
	return &usageError{err: err, command: root.CommandPath()} // one of cobra's own
}

// completeRoot adds to the root what the client does not have.
func (a *app) completeRoot(root *cobra.Command) {
	root.Version = a.opts.Version
	root.SetVersionTemplate("pannier {{.Version}}\n")
	root.AddCommand(a.setupCommand(), a.doctorCommand(), a.debugCommand(), a.completionCommand())
	if a.opts.RunAgent != nil {
		agent := a.agentCommand()
		agent.AddCommand(a.agentOrders()...)
		root.AddCommand(agent, a.fenceCommand())
	}
}

// pluginFiles are the commands about plugins' binaries and sources.
func (a *app) pluginFiles() []*cobra.Command {
	return []*cobra.Command{a.pluginInstall(), a.pluginUpgrade(), a.pluginInfo(), a.pluginTest(), a.pluginNew()}
}

func (a *app) snapshotCommands() []*cobra.Command {
	return []*cobra.Command{a.snapshotSave(), a.snapshotRestore(), a.snapshotInspect()}
}
