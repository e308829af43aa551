package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"
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

// checkArgs requires the arguments that Use names, as in "run SPEC [FILE...] [-- COMMAND]". Those in brackets may be
// missing, and those behind -- are not looked at.
func checkArgs(cmd *cobra.Command, args []string) error {
	var names []string
	least, many, passes := 0, false, false
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if strings.HasPrefix(word, "-") || strings.HasPrefix(word, "[-") {
			passes = word == "[--"
			break
		}
		name := strings.Trim(word, "[].")
		names, many = append(names, name), strings.Contains(word, "...")
		if !strings.HasPrefix(word, "[") {
			least++
		}
	}
	dash := cmd.ArgsLenAtDash()
	if passes && dash >= 0 {
		args = args[:dash]
	}
	var err error
	switch {
	case len(args) < least:
		err = fmt.Errorf("%s is missing", names[len(args)])
	case len(args) > len(names) && !many:
		err = fmt.Errorf("%q is one argument too many", args[len(names)])
		if passes && dash < 0 {
			err = Hinted(err, "the command goes behind --: %s %s", cmd.Parent().CommandPath(), cmd.Use)
		}
	default:
		return nil
	}
	return Usage("%w", err)
}

// nodeFlag adds -node, by which another host of the cluster is asked.
func nodeFlag(f *pflag.FlagSet, node *string) {
	f.StringVar(node, "node", "", "ask this `NODE` of the cluster in place of the agent that is called")
}

// require makes flags mandatory.
func require(cmd *cobra.Command, names ...string) {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		for _, name := range names {
			if !cmd.Flags().Changed(name) {
				return Usage("flag -%s is missing", name)
			}
		}
		return checkArgs(cmd, args)
	}
}

// readSecrets reads the flags -secret-from, which name files: an argument list can be read by every user of the
// machine.
func readSecrets(flags []string) (map[string]string, error) {
	secrets := map[string]string{}
	for _, flag := range flags {
		key, ref, ok := strings.Cut(flag, "=")
		if !ok || key == "" {
			return nil, Usage("-secret-from is not KEY=file:///path")
		}
		value, err := config.ReadSecret(ref)
		if err != nil {
			return nil, Usage("-secret-from %s: %w", key, err)
		}
		secrets[key] = value
	}
	return secrets, nil
}

// pairs reads flags of the form KEY=VALUE.
func pairs(name string, flags []string) (map[string]string, error) {
	out := map[string]string{}
	for _, flag := range flags {
		key, value, ok := strings.Cut(flag, "=")
		if !ok || key == "" {
			return nil, Usage("-%s %q is not KEY=VALUE", name, flag)
		}
		out[key] = value
	}
	return out, nil
}

// entriesPerPage is the number of volumes or snapshots per request to a driver.
const entriesPerPage = 100

// listAgain is how often a list is begun again because the driver no longer knows a page's token.
const listAgain = 3

// paging are the flags of the commands that list what a driver has. Without them everything is listed.
type paging struct {
	size  int32
	token string
}

func (p *paging) flags(f *pflag.FlagSet) {
	f.Int32Var(&p.size, "per-page", 0, "list one page of at most `N` entries")
	f.StringVar(&p.token, "page-token", "", "list the page that `TOKEN` stands for, which the page before names")
}

// given reports whether one page is asked for.
func (p *paging) given() bool { return p.size != 0 || p.token != "" }

// entries gets one page, with the token of the next one, or everything. A driver answers Aborted to a token that is no
// longer valid, and the list begins again (CSI spec, "ListVolumes Errors").
func entries[T any](p *paging, get func(size int32, token string) (page []T, next string, err error)) (all []T,
	next string, err error,
) {
	if p.given() {
		return get(cmp.Or(p.size, entriesPerPage), p.token)
	}
	again := 0
	for token := ""; ; {
		page, next, err := get(entriesPerPage, token)
		if connect.CodeOf(err) == connect.CodeAborted && token != "" && again < listAgain {
			again++
			all, token = nil, ""
			continue
		}
		if err != nil {
			return nil, "", err
		}
		all = append(all, page...)
		// One that answers with the same token again would be asked for ever.
		if next == "" || next == token {
			return all, "", nil
		}
		token = next
	}
}
