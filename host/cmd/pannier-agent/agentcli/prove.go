package agentcli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/host/internal/cli"
	"github.com/pannier/pannier/sdk/conformance"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/service"
)

func pluginTest(a *cli.App) *cobra.Command {
	var cfg conformance.Config
	var config, driver string
	cmd := &cobra.Command{
		Use: "test BINARY [-- ARG...]", Short: "Prove a plugin's binary, check by check",
		Long: `Prove a plugin's binary. It is started as an agent does, many times, and called, killed,
swapped and abandoned; the table says which checks passed, and what to do about the others.
It needs no agent. Arguments after -- are the plugin's own, as args in its block.

Checks that need a CSI driver, a Consul or another issuer are skipped unless one is given.
What they make there is deleted again. docs/conformance.md says more.`,
		Example: "pannier agent plugin test -driver unix:///run/csi/local.sock ./my-storage",
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.Kind, "kind", "",
		"the `KIND` that it must be of, such as storage (default: the one that it tells)")
	flags.StringVar(&config, "config", "", "a `FILE` with its configuration, a JSON object")
	flags.StringVar(&driver, "driver", "", "the `ENDPOINT` of a healthy CSI driver, for a storage plugin")
	flags.StringVar(&cfg.Consul.Address, "consul", "",
		"the `ADDRESS` of a Consul, for an identity, registration or bootstrap plugin")
	flags.StringVar(&cfg.Consul.TokenFile, "consul-token-file", "", "a `FILE` with the token for that Consul")
	flags.BoolVar(&cfg.OwnBackend, "own-backend", false,
		"an identity or registration plugin has an issuer or a catalog of its own, which the configuration names")
	flags.StringVar(&cfg.ProxyID, "proxy", "",
		"the service `ID` of a proxy that is registered in that Consul, for a bootstrap plugin")
	flags.StringSliceVar(&cfg.Listen, "listen", nil,
		"the `NAMES` of the listen blocks of a front door, separated by commas (default: http)")
	cmd.RunE = a.Do(func(ctx context.Context, args []string) error {
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
				return cli.Usage("read the configuration: %w", err)
			}
			cfg.Config = text
		}
		return provePlugin(ctx, a, cfg)
	})
	return cmd
}

func pluginInfo(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "info BINARY [-- ARG...]", Short: "Show what a plugin's binary is, and which configuration keys it has",
		Long: `Show what a plugin's binary is, and which configuration keys it has: what the body of
config in its plugin block may say. The binary is started as an agent does, asked, and
ended. It needs no agent; run it as a user that you trust the binary with. Plugins that
are not written with sdk.Config have no keys to show.`,
		Example: "pannier agent plugin info ./my-storage",
		RunE: a.Do(func(ctx context.Context, args []string) error {
			info, err := conformance.Inspect(ctx, args[0], args[1:]...)
			if err != nil {
				return fmt.Errorf("inspect %s: %w", args[0], err)
			}
			return a.Print(info, nil, func() { showInfo(a, info) })
		}),
	}
}

func showInfo(a *cli.App, info *pluginv1.InfoResponse) {
	t := cli.NewTable()
	t.Row("Name", info.GetName())
	t.Row("Kind", info.GetKind())
	t.Row("Version", info.GetVersion())
	a.Show(t)
	t = cli.NewTable("KEY", "TYPE", "DEFAULT", "WHAT IT IS")
	for _, k := range info.GetConfigKeys() {
		value := k.GetDefaultValue()
		if k.GetRequired() {
			value = "(required)"
		}
		t.Row(k.GetName(), k.GetType(), value, k.GetDoc())
	}
	a.Section("", t)
}

func provePlugin(ctx context.Context, a *cli.App, cfg conformance.Config) error {
	report, err := conformance.Run(ctx, cfg)
	if report == nil {
		return cli.Usage("%w", err)
	}
	err = errors.Join(err, a.Print(report, nil, func() { showProof(a, report) }))
	if err == nil && report.Count(conformance.Failed)+len(report.Left) > 0 {
		return cli.Silent(cli.ExitError)
	}
	return err
}

func showProof(a *cli.App, report *conformance.Report) {
	t := cli.NewTable("CHECK", "RESULT", "TOOK", "WHY")
	for _, res := range report.Results {
		why := ""
		if res.Status == conformance.Skipped {
			why = res.Reason
		}
		t.Row(res.ID, proofState(res.Status), took(res.Took), why)
	}
	a.Show(t)
	for _, res := range report.Results {
		if res.Status == conformance.Failed {
			a.Say("")
			a.Say("%s failed: %s", res.ID, res.Reason)
			a.Say("  It must be so: %s", res.Says)
			a.Say("  What to do:    %s", res.Fix)
		}
	}
	for _, what := range report.Left {
		a.Note("left behind: %s", what)
	}
	who := report.Binary
	if report.Name != "" {
		who = fmt.Sprintf("%s %s (%s)", report.Name, report.Version, report.Kind)
	}
	a.Say("")
	a.Say("%s: %d passed, %d failed, %d skipped", who, report.Count(conformance.Passed), report.Count(conformance.Failed),
		report.Count(conformance.Skipped))
}

func proofState(s conformance.Status) cli.Cell {
	switch s {
	case conformance.Passed:
		return cli.Cell{Text: string(s), Color: cli.Green}
	case conformance.Failed:
		return cli.Cell{Text: string(s), Color: cli.Red}
	default:
		return cli.Cell{Text: string(s), Color: cli.Yellow}
	}
}

// took leaves out what took no time.
func took(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.Round(time.Millisecond).String()
}
