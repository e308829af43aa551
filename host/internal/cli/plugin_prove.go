//go:build !client

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/conformance"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/service"
)

func (a *app) pluginTest() *cobra.Command {
	var cfg conformance.Config
	var config, driver string
	cmd := &cobra.Command{
		Use: "test BINARY [-- ARG...]", Short: "Prove a plugin's binary, check by check",
		Long: `Prove a plugin's binary. It is started as an agent does, many times, and called, killed,
swapped and abandoned; the table says which checks passed, and what to do about the others.
It needs no agent. Arguments after -- are the plugin's own, as args in its block.

Checks that need a CSI driver or a Consul are skipped unless one is given. What they make
there is deleted again. docs/conformance.md says more.`,
		Example: "pannier plugin test -driver unix:///run/csi/local.sock ./my-storage",
		Args:    binaryArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.Kind, "kind", "",
		"the `KIND` that it must be of, such as storage (default: the one that it tells)")
	flags.StringVar(&config, "config", "", "a `FILE` with its configuration, a JSON object")
	flags.StringVar(&driver, "driver", "", "the `ENDPOINT` of a healthy CSI driver, for a storage plugin")
	flags.StringVar(&cfg.Consul.Address, "consul", "",
		"the `ADDRESS` of a Consul, for an identity, registration or bootstrap plugin")
	flags.StringVar(&cfg.Consul.TokenFile, "consul-token-file", "", "a `FILE` with the token for that Consul")
	flags.StringVar(&cfg.ProxyID, "proxy", "",
		"the service `ID` of a proxy that is registered in that Consul, for a bootstrap plugin")
	flags.StringSliceVar(&cfg.Listen, "listen", nil,
		"the `NAMES` of the listen blocks of a front door, separated by commas (default: http)")
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		cfg.Binary, cfg.Args = args[0], args[1:]
		cfg.Consul.Name = service.DefaultConsul
		if cfg.Kind != "" && !strings.Contains(cfg.Kind, ".") {
			cfg.Kind += ".v1"
		}
		if driver != "" {
			cfg.Driver = conformance.Driver(driver)
		}
		if config != "" {
			text, err := os.ReadFile(config)
			if err != nil {
				return &usageError{err: fmt.Errorf("read the configuration: %w", err)}
			}
			cfg.Config = text
		}
		return a.provePlugin(ctx, cfg)
	})
	return cmd
}

func (a *app) pluginInfo() *cobra.Command {
	return &cobra.Command{
		Use: "info BINARY [-- ARG...]", Short: "Show what a plugin's binary is, and which configuration keys it has",
		Long: `Show what a plugin's binary is, and which configuration keys it has: what the body of
config in its plugin block may say. The binary is started as an agent does, asked, and
ended. It needs no agent; run it as a user that you trust the binary with. Plugins that
are not written with sdk.Config have no keys to show.`,
		Example: "pannier plugin info ./my-storage",
		Args:    binaryArgs,
		RunE: a.do(func(ctx context.Context, args []string) error {
			info, err := conformance.Inspect(ctx, args[0], args[1:]...)
			if err != nil {
				return fmt.Errorf("inspect %s: %w", args[0], err)
			}
			return a.print(info, func() error { return a.showInfo(info) })
		}),
	}
}

func (a *app) showInfo(info *pluginv1.InfoResponse) error {
	t := newTable()
	t.row("Name", info.GetName())
	t.row("Kind", info.GetKind())
	t.row("Version", info.GetVersion())
	if err := a.show(t); err != nil || len(info.GetConfigKeys()) == 0 {
		return err
	}
	t = newTable("KEY", "TYPE", "DEFAULT", "WHAT IT IS")
	for _, k := range info.GetConfigKeys() {
		value := k.GetDefaultValue()
		if k.GetRequired() {
			value = "(required)"
		}
		t.row(k.GetName(), k.GetType(), value, k.GetDoc())
	}
	fmt.Fprintln(a.out)
	return a.show(t)
}

// binaryArgs wants one argument, the plugin's binary. The arguments after -- are the plugin's.
func binaryArgs(cmd *cobra.Command, args []string) error {
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		args = args[:dash]
	}
	return exactly("BINARY")(cmd, args)
}

func (a *app) provePlugin(ctx context.Context, cfg conformance.Config) error {
	report, err := conformance.Run(ctx, cfg)
	if report == nil {
		return &usageError{err: err}
	}
	if a.format == formatJSON {
		err = errors.Join(err, a.printValue(report))
	} else {
		err = errors.Join(err, a.showProof(report))
	}
	if err == nil && report.Count(conformance.Failed)+len(report.Left) > 0 {
		return silentExit(ExitError)
	}
	return err
}

func (a *app) showProof(report *conformance.Report) error {
	t := newTable("CHECK", "RESULT", "TOOK", "WHY")
	for _, res := range report.Results {
		why := ""
		if res.Status == conformance.Skipped {
			why = res.Reason
		}
		t.row(res.ID, proofState(res.Status), took(res.Took), why)
	}
	if err := a.show(t); err != nil {
		return err
	}
	for _, res := range report.Results {
		if res.Status == conformance.Failed {
			fmt.Fprintf(a.out, "\n%s failed: %s\n  It must be so: %s\n  What to do:    %s\n", res.ID, printable(res.Reason),
				res.Says, res.Fix)
		}
	}
	for _, what := range report.Left {
		a.note("left behind: %s", what)
	}
	who := report.Binary
	if report.Name != "" {
		who = fmt.Sprintf("%s %s (%s)", report.Name, report.Version, report.Kind)
	}
	fmt.Fprintf(a.out, "\n%s: %d passed, %d failed, %d skipped\n", printable(who),
		report.Count(conformance.Passed), report.Count(conformance.Failed), report.Count(conformance.Skipped))
	return nil
}

func proofState(s conformance.Status) cell {
	switch s {
	case conformance.Passed:
		return cell{string(s), green}
	case conformance.Failed:
		return cell{string(s), red}
	default:
		return cell{string(s), yellow}
	}
}

// took leaves out what took no time.
func took(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.Round(time.Millisecond).String()
}
