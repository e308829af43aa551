package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/api"
)

// verb declares a command.
type verb struct {
	use, short, long string
	// example has the arguments of examples, one a line, or whole command lines.
	example string
	// formats are its formats of -o besides table and json.
	formats string
	flags   func(f *pflag.FlagSet)
	// needs are flags that must be given, apart pairs of which one may be.
	needs, apart []string
	// parameters and secrets are for a driver: the flags -parameter and -secret-from.
	parameters, secrets bool
	// danger is why a command that calls the agent asks first, or needs -yes; nil: it is harmless.
	danger *danger
	// run is the work of a command that calls the agent, local is another command's.
	run, local work
}

// noun declares a command that has commands below it.
type noun struct {
	use, short string
	verbs      []verb
	nouns      []noun
	others     []*cobra.Command // that are not verbs
}

func nounOf(use, short string, verbs []verb, nouns ...noun) noun {
	return noun{use, short, verbs, nouns, nil}
}

func (a *App) tree(n noun) *cobra.Command {
	for _, v := range n.verbs {
		n.others = append(n.others, a.command(v))
	}
	for _, below := range n.nouns {
		n.others = append(n.others, a.tree(below))
	}
	return a.Noun(n.use, n.short, n.others...)
}

// work is what a verb does.
type work func(ctx context.Context, c *call) error

// call is one run of a verb.
type call struct {
	*App
	*api.Client // nil if it is local
	args        []string
	// parameters and secrets are the given ones.
	parameters, secrets map[string]string
}

// arg is an argument that may be missing, which is "".
func (c *call) arg(n int) string {
	if n < len(c.args) {
		return c.args[n]
	}
	return ""
}

// operands are the arguments, for a format.
func (c *call) operands() []any {
	all := make([]any, len(c.args))
	for i, arg := range c.args {
		all[i] = arg
	}
	return all
}

// inNamespace returns the namespace of what an argument names.
func (c *call) inNamespace() string { return c.namespaceOr(claim.DefaultNamespace) }

// order is a call that is answered by one sentence about the arguments.
func order(done string, ask func(ctx context.Context, c *call) (any, error)) work {
	return func(ctx context.Context, c *call) error {
		resp, err := ask(ctx, c)
		return c.Done(resp, err, done, c.operands()...)
	}
}

func (a *App) command(v verb) *cobra.Command {
	cmd := &cobra.Command{Use: v.use, Short: v.short, Long: v.long, Example: v.example}
	if v.formats != "" {
		cmd.Annotations = map[string]string{extraFormats: v.formats}
	}
	if v.flags != nil {
		v.flags(cmd.Flags())
	}
	var parameters, secrets []string
	if v.parameters {
		cmd.Flags().StringArrayVar(&parameters, "parameter", nil,
			"a parameter for the driver as `KEY=VALUE`; may be given more than once")
	}
	if v.parameters || v.secrets {
		cmd.Flags().StringArrayVar(&secrets, "secret-from", nil,
			"a secret for the driver as `KEY=file:///path`; may be given more than once")
	}
	if len(v.needs) > 0 {
		require(cmd, v.needs...)
	}
	for _, pair := range v.apart {
		cmd.MarkFlagsMutuallyExclusive(strings.Fields(pair)...)
	}
	check := func(context.Context, *call) error { return nil }
	if v.danger != nil {
		check = v.danger.addTo(cmd)
	}
	if v.local != nil {
		cmd.RunE = a.Do(func(ctx context.Context, args []string) error { return v.local(ctx, &call{App: a, args: args}) })
		return cmd
	}
	cmd.RunE = a.WithClient(func(ctx context.Context, client *api.Client, args []string) (err error) {
		c := &call{App: a, Client: client, args: args}
		if c.parameters, err = pairs("parameter", parameters); err != nil {
			return err
		}
		if c.secrets, err = readSecrets(secrets); err != nil {
			return err
		}
		if err = check(ctx, c); err != nil {
			return err
		}
		return v.run(ctx, c)
	})
	return cmd
}

// examples puts the command before lines that have arguments only.
func examples(cmd *cobra.Command) string {
	if strings.Contains(cmd.Example, cmd.CommandPath()) {
		return cmd.Example
	}
	lines := strings.Split(cmd.Example, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(cmd.CommandPath() + " " + line)
	}
	return strings.Join(lines, "\n")
}
