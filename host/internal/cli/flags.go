package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// longFlags writes Go's way of a long flag (-dev) in pflag's (--dev): both are
// taken. A single letter stays a short flag, and so does what begins with one and is
// no long flag's name (-ojson); nothing after "--" is touched.
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

// exactly wants these arguments, which the error names.
func exactly(names ...string) cobra.PositionalArgs { return between(len(names), names...) }

// between wants the first of these arguments at least, and no more than all.
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

// require wants these flags to be given.
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
