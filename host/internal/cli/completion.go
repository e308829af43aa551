package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pannier/pannier/cluster/claim"
	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// completeTimeout bounds how long a shell waits for the agent's ids.
const completeTimeout = time.Second

// kind is a kind of things that commands have as arguments.
type kind struct {
	// list asks the agent for their names; nil: they are not completed. namespace and node may be empty.
	list func(ctx context.Context, client *api.Client, namespace, node string) ([]string, error)
	// known finds the names.
	known string
}

var (
	drivers = kind{func(ctx context.Context, c *api.Client, _, _ string) ([]string, error) {
		resp, err := c.Drivers.ListDrivers(ctx, &hostv1.ListDriversRequest{})
		return names(resp.GetDrivers(), (*hostv1.Driver).GetId), err
	}, "pannier driver status lists the drivers"}
	nodes = kind{func(ctx context.Context, c *api.Client, _, _ string) ([]string, error) {
		resp, err := c.Nodes.ListNodes(ctx, &hostv1.ListNodesRequest{})
		return names(resp.GetNodes(), (*hostv1.Node).GetName), err
	}, "pannier node status lists the nodes"}
	plugins = kind{func(ctx context.Context, c *api.Client, _, node string) ([]string, error) {
		resp, err := c.Plugins.ListPlugins(ctx, &hostv1.ListPluginsRequest{Node: node})
		return names(resp.GetPlugins(), (*hostv1.Plugin).GetName), err
	}, "pannier plugin list lists the plugins"}
	policies = kind{func(ctx context.Context, c *api.Client, _, _ string) ([]string, error) {
		resp, err := c.ACL.ListACLPolicies(ctx, &hostv1.ListACLPoliciesRequest{})
		return names(resp.GetPolicies(), (*hostv1.ACLPolicy).GetName), err
	}, "pannier acl policy list lists the policies"}
	roles = kind{func(ctx context.Context, c *api.Client, _, _ string) ([]string, error) {
		resp, err := c.ACL.ListACLRoles(ctx, &hostv1.ListACLRolesRequest{})
		return names(resp.GetRoles(), (*hostv1.ACLRole).GetName), err
	}, "pannier acl role list lists the roles"}
	tokens = kind{func(ctx context.Context, c *api.Client, _, _ string) ([]string, error) {
		resp, err := c.ACL.ListACLTokens(ctx, &hostv1.ListACLTokensRequest{})
		return names(resp.GetTokens(), (*hostv1.ACLToken).GetAccessor), err
	}, "pannier acl token list lists the tokens"}
	volumes = kind{func(ctx context.Context, c *api.Client, namespace, _ string) ([]string, error) {
		resp, err := c.Volumes.ListVolumes(ctx, &hostv1.ListVolumesRequest{Namespace: namespace})
		return names(resp.GetVolumes(), func(v *hostv1.Volume) string { return v.GetSpec().GetId() }), err
	}, "pannier volume status lists the volumes"}
	workloads = kind{func(ctx context.Context, c *api.Client, namespace, node string) ([]string, error) {
		resp, err := c.Workloads.ListWorkloads(ctx, &hostv1.ListWorkloadsRequest{Namespace: namespace, Node: node})
		return names(resp.GetWorkloads(), func(w *hostv1.Workload) string { return w.GetSpec().GetId() }), err
	}, "pannier workload status lists the workloads"}
)

// arguments are the kinds of first arguments, by the noun before them and their names in Use, or by their names.
var arguments = map[string]kind{
	"DRIVER": drivers, "NODE": nodes, "VOLUME": volumes, "SPEC|ID": workloads,
	"driver ID": drivers, "policy NAME": policies, "role NAME": roles, "volume ID": volumes,
	"workload ID":    workloads,
	"plugin NAME":    plugins,
	"token ACCESSOR": tokens,
	"keyring ID":     {nil, "pannier keyring list has the keys' ids"},
	"raft NAME":      {nil, "pannier operator raft list-peers lists the servers"},
	"server NAME":    {nil, "pannier server members lists the agents"},
}

// valued are the kinds of the values of flags.
var valued = map[string]kind{"driver": drivers, "node": nodes, "policy": policies, "role": roles, "workload": workloads}

// firstArgument returns the name of a command's first argument, and its kind.
func firstArgument(cmd *cobra.Command) (name string, k kind) {
	words := strings.Fields(cmd.Use)
	if len(words) < 2 {
		return "", kind{}
	}
	name = strings.Trim(words[1], "[].")
	k, ok := arguments[cmd.Parent().Name()+" "+name]
	if !ok {
		k = arguments[name]
	}
	return name, k
}

// completeArguments completes what of a command has a kind.
func (a *App) completeArguments(cmd *cobra.Command) {
	if name, k := firstArgument(cmd); k.list != nil && cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			switch {
			case len(args) > 0:
				return nil, cobra.ShellCompDirectiveNoFileComp
			case strings.HasPrefix(name, "SPEC"):
				return a.ids(cmd, k, typed), cobra.ShellCompDirectiveDefault
			}
			return a.ids(cmd, k, typed), cobra.ShellCompDirectiveNoFileComp
		}
	}
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if k := valued[flag.Name]; k.list != nil && flag.Value.Type() != "bool" {
			// It fails only for an unknown flag.
			_ = cmd.RegisterFlagCompletionFunc(flag.Name,
				func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
					return a.ids(cmd, k, typed), cobra.ShellCompDirectiveNoFileComp
				})
		}
	})
}

// ids returns the ids that start with what was typed; none when the agent does not answer.
func (a *App) ids(cmd *cobra.Command, k kind, typed string) []string {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	client, err := a.Client()
	if err != nil {
		return nil
	}
	node := ""
	if flag := cmd.Flag("node"); flag != nil {
		node = flag.Value.String()
	}
	all, err := k.list(ctx, client, a.namespaceOr("*"), node)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(all, func(id string) bool { return !strings.HasPrefix(id, typed) })
}

// advise adds to an error what to do next, as far as that follows from what the command is about.
func advise(ctx context.Context, client *api.Client, cmd *cobra.Command, args []string, err error) error {
	if err == nil || errors.As(err, new(*hintError)) {
		return err
	}
	_, k := firstArgument(cmd)
	text := message(err)
	code, _ := classify(err)
	if away := silentNode(ctx, client, code, text); away != "" {
		return Hinted(err, "%s", away)
	}
	switch {
	case strings.Contains(text, "is not on this node") || strings.Contains(text, "is on no node"):
		k = drivers
	case len(args) > 0 && strings.Contains(text, "held by workload"):
		return Hinted(err, "pannier volume explain %s says what its holders wait for", escape.Argument(args[0]))
	case code != ExitNotFound:
		return err
	}
	if k.known == "" {
		return err
	}
	return Hinted(err, "%s", k.known)
}

// onNode is how a refusal names the node that has something.
var onNode = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`on node "([^"]+)"`) })

// silentNode says when what a refusal names is free by itself: its node is not heard from. Empty: it is.
func silentNode(ctx context.Context, client *api.Client, code int, text string) string {
	named := onNode().FindStringSubmatch(text)
	if code != ExitRefused || named == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	resp, err := client.Nodes.GetNode(ctx, &hostv1.GetNodeRequest{Name: named[1]})
	n := resp.GetNode()
	if err != nil || n.GetStatus() != string(claim.NodeDisconnected) || n.GetLetGoAt() == nil {
		return ""
	}
	return fmt.Sprintf("node %q has been silent for %s; what it has is free %s: repeat then (pannier node status %s)",
		named[1], span(time.Since(n.GetLastHeard().AsTime())), ahead(n.GetLetGoAt()), named[1])
}

// names returns the name of each.
func names[T any](all []T, name func(T) string) (out []string) {
	for _, one := range all {
		out = append(out, name(one))
	}
	return out
}

// oneDash reports whether a shell completes a flag that has one dash.
func oneDash(args []string) bool {
	if len(args) < 2 || args[0] != cobra.ShellCompRequestCmd && args[0] != cobra.ShellCompNoDescRequestCmd {
		return false
	}
	last := args[len(args)-1]
	return strings.HasPrefix(last, "-") && !strings.HasPrefix(last, "--")
}

// oneDashed writes a completion, one a Write, with one dash, since shells drop those that do not begin with what was
// typed.
type oneDashed struct{ io.Writer }

func (o oneDashed) Write(p []byte) (int, error) {
	if text, ok := bytes.CutPrefix(p, []byte("-")); ok && bytes.HasPrefix(text, []byte("-")) {
		_, err := o.Writer.Write(text)
		return len(p), err
	}
	return o.Writer.Write(p)
}

func completionCommand(p *Printer) *cobra.Command {
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
				return root.GenBashCompletionV2(p.Out, true)
			case "zsh":
				return root.GenZshCompletion(p.Out)
			case "fish":
				return root.GenFishCompletion(p.Out, true)
			}
			return Usage("shell %q is not one of bash, zsh, fish", args[0])
		},
	}
}
