//go:build !client

package cli

import (
	"context"
	"errors"
	"fmt"

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
	root.AddCommand(a.setupCommand(), a.importCommand(), a.doctorCommand(), a.debugCommand(), a.completionCommand())
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

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "Write a completion script for a shell",
		Long: `Write a completion script for a shell to standard output. It completes ids too, when the
agent can be reached.`,
		Example: `source <(pannier completion bash)
pannier completion zsh > "${fpath[1]}/_pannier"
pannier completion fish > ~/.config/fish/completions/pannier.fish`,
		Args: exactly("the shell"), ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return root.GenZshCompletion(a.out)
			case "fish":
				return root.GenFishCompletion(a.out, true)
			}
			return &usageError{err: fmt.Errorf("shell %q is not one of bash, zsh, fish", args[0]), command: cmd.CommandPath()}
		},
	}
}
