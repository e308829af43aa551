package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pannier/pannier/host/internal/config"
)

// longFlags rewrites long flags in Go's style (-dev) to pflag's (--dev), so that both are
// accepted. Single letters, and words that start with a short flag and are no long flag's
// name (-ojson), stay short flags. Arguments after "--" are unchanged.
func longFlags(root *cobra.Command, args []string) []string {
	known, short := map[string]bool{"help": true}, map[string]bool{"h": true}
	var collect func(*cobra.Command)
	collect = func(cmd *cobra.Command) {
		add := func(f *pflag.Flag) { known[f.Name], short[f.Shorthand] = true, true }
		cmd.Flags().VisitAll(add)
		cmd.PersistentFlags().VisitAll(add)
		for _, sub := range cmd.Commands() {
			collect(sub)
		}
	}
	collect(root)
	out := slices.Clone(args)
	for i, arg := range out {
		if arg == "--" {
			break
		}
		name, isFlag := strings.CutPrefix(arg, "-")
		name, _, _ = strings.Cut(name, "=")
		if isFlag && len(name) > 1 && name[0] != '-' && (known[name] || !short[name[:1]]) {
			out[i] = "-" + arg
		}
	}
	return out
}

// exactly requires these arguments; the error names a missing one.
func exactly(names ...string) cobra.PositionalArgs { return between(len(names), names...) }

// between requires at least the first of these arguments, and allows all.
func between(least int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		var err error
		switch {
		case len(args) < least:
			err = fmt.Errorf("%s is missing", names[len(args)])
		case len(args) > len(names):
			err = fmt.Errorf("%q is one argument too many", args[len(names)])
		}
		if err != nil {
			return &usageError{err: err, command: cmd.CommandPath()}
		}
		return nil
	}
}

// nodeFlag adds -node, by which another host of the cluster is asked.
func (a *app) nodeFlag(cmd *cobra.Command, node *string) {
	cmd.Flags().StringVar(node, "node", "", "ask this `NODE` of the cluster in place of the agent that is called")
	complete(cmd, "node", a.completeIDs(nodeIDs))
}

// require makes flags mandatory.
func require(cmd *cobra.Command, names ...string) {
	inner := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		for _, name := range names {
			if !cmd.Flags().Changed(name) {
				return &usageError{err: fmt.Errorf("flag -%s is missing", name), command: cmd.CommandPath()}
			}
		}
		return inner(cmd, args)
	}
}

// secretsFlag adds -secret-from, which names files: an argument list can be read
// by every user of the machine.
func secretsFlag(cmd *cobra.Command, into *[]string) {
	cmd.Flags().StringArrayVar(into, "secret-from", nil,
		"a secret for the driver as `KEY=file:///path`; may be given more than once")
}

func readSecrets(flags []string) (map[string]string, error) {
	secrets := map[string]string{}
	for _, flag := range flags {
		key, ref, ok := strings.Cut(flag, "=")
		if !ok || key == "" {
			return nil, &usageError{err: fmt.Errorf("-secret-from is not KEY=file:///path")}
		}
		value, err := config.ReadSecret(ref)
		if err != nil {
			return nil, &usageError{err: fmt.Errorf("-secret-from %s: %w", key, err)}
		}
		secrets[key] = value
	}
	return secrets, nil
}

// driverFlags are the flags -parameter and -secret-from of a command that passes both on to a driver.
type driverFlags struct{ parameters, secrets []string }

func (f *driverFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.parameters, "parameter", nil,
		"a parameter for the driver as `KEY=VALUE`; may be given more than once")
	secretsFlag(cmd, &f.secrets)
}

func (f *driverFlags) read() (parameters, secrets map[string]string, err error) {
	if parameters, err = pairs("parameter", f.parameters); err != nil {
		return nil, nil, err
	}
	secrets, err = readSecrets(f.secrets)
	return parameters, secrets, err
}

// pairs reads flags of the form KEY=VALUE.
func pairs(name string, flags []string) (map[string]string, error) {
	out := map[string]string{}
	for _, flag := range flags {
		key, value, ok := strings.Cut(flag, "=")
		if !ok || key == "" {
			return nil, &usageError{err: fmt.Errorf("-%s %q is not KEY=VALUE", name, flag)}
		}
		out[key] = value
	}
	return out, nil
}
