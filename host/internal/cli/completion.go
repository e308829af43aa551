package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// completeTimeout bounds how long a shell waits for the agent's ids.
const completeTimeout = time.Second

// lister asks the agent for ids, of a namespace if they have one.
type lister func(ctx context.Context, client *api.Client, namespace string) ([]string, error)

type completer func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// CompleteIDs completes the first argument with the agent's ids.
func (a *App) CompleteIDs(list lister) completer {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.ids(cmd, list, typed), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag completes a flag's value.
func completeFlag(cmd *cobra.Command, flag string, values completer) {
	// It fails only for an unknown flag.
	_ = cmd.RegisterFlagCompletionFunc(flag,
		func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return values(cmd, nil, typed)
		})
}

// completeFileOrID completes the first argument with ids and files.
func (a *App) completeFileOrID(list lister) completer {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.ids(cmd, list, typed), cobra.ShellCompDirectiveDefault
	}
}

// completeSpec completes the first argument with spec files.
func completeSpec(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []string{"hcl", "json"}, cobra.ShellCompDirectiveFilterFileExt
}

// ids returns the ids that start with what was typed; none when the agent does not answer.
func (a *App) ids(cmd *cobra.Command, list lister, typed string) []string {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	client, err := a.Client()
	if err != nil {
		return nil
	}
	all, err := list(ctx, client, a.namespaceOr("*"))
	if err != nil {
		return nil
	}
	var matching []string
	for _, id := range all {
		if strings.HasPrefix(id, typed) {
			matching = append(matching, id)
		}
	}
	return matching
}

func driverIDs(ctx context.Context, client *api.Client, _ string) ([]string, error) {
	resp, err := client.Drivers.ListDrivers(ctx, &hostv1.ListDriversRequest{})
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, d := range resp.GetDrivers() {
		ids = append(ids, d.GetId())
	}
	return ids, nil
}

func nodeIDs(ctx context.Context, client *api.Client, _ string) ([]string, error) {
	resp, err := client.Nodes.ListNodes(ctx, &hostv1.ListNodesRequest{})
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, n := range resp.GetNodes() {
		ids = append(ids, n.GetName())
	}
	return ids, nil
}

func volumeIDs(ctx context.Context, client *api.Client, namespace string) ([]string, error) {
	resp, err := client.Volumes.ListVolumes(ctx, &hostv1.ListVolumesRequest{Namespace: namespace})
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, v := range resp.GetVolumes() {
		ids = append(ids, v.GetSpec().GetId())
	}
	return ids, nil
}

func workloadIDs(ctx context.Context, client *api.Client, namespace string) ([]string, error) {
	return workloadIDsOf(new(string))(ctx, client, namespace)
}

// workloadIDsOf lists the workloads of the node that a flag names.
func workloadIDsOf(node *string) lister {
	return func(ctx context.Context, client *api.Client, namespace string) ([]string, error) {
		resp, err := client.Workloads.ListWorkloads(ctx, &hostv1.ListWorkloadsRequest{Namespace: namespace, Node: *node})
		if err != nil {
			return nil, err
		}
		var ids []string
		for _, w := range resp.GetWorkloads() {
			ids = append(ids, w.GetSpec().GetId())
		}
		return ids, nil
	}
}

func (a *App) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "Write a completion script for a shell",
		Long: `Write a completion script for a shell to standard output. It completes ids too, when the
agent can be reached.`,
		Example: `source <(pannier completion bash)
pannier completion zsh > "${fpath[1]}/_pannier"
pannier completion fish > ~/.config/fish/completions/pannier.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.Out, true)
			case "zsh":
				return root.GenZshCompletion(a.Out)
			case "fish":
				return root.GenFishCompletion(a.Out, true)
			}
			return &usageError{err: fmt.Errorf("shell %q is not one of bash, zsh, fish", args[0]), command: cmd.CommandPath()}
		},
	}
}
