package agentcli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pannier/pannier/host/internal/cli"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/pluginhost/install"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// installing is what plugin install and upgrade have in common.
type installing struct {
	cfg       install.Config
	version   string
	paths     []string
	pluginDir string
	wait      bool
}

func (i *installing) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&i.version, "version", "", "a `CONSTRAINT` on the version, such as '~> 1.2'")
	flags.StringVar(&i.cfg.SHA256, "sha256", "", "the `SUM` that the binary must have, or the archive that it is in")
	flags.BoolVar(&i.cfg.Force, "force", false, "replace an installed binary of the same version that differs")
	flags.StringArrayVar(&i.paths, "config", nil, "`PATH` of the agent's configuration, for plugin_dir and plugin_signing; "+
		"may be\ngiven more than once (default "+config.SystemDir+", if it is there)")
	flags.BoolVar(&i.wait, "wait", true, "wait until the running agent's process of it serves; =false: do not")
	flags.StringVar(&i.pluginDir, "plugin-dir", "", "the `FOLDER` of the plugins (default: the configuration's)")
}

var sumForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(sha256:)?[0-9a-fA-F]{64}$`) })

// complete reads what is not given from the agent's configuration.
func (i *installing) complete() error {
	if i.cfg.SHA256 != "" && !sumForm().MatchString(i.cfg.SHA256) {
		return cli.Usage("-sha256: 64 hex digits are required, not %q", i.cfg.SHA256)
	}
	src := config.Source{Paths: config.Installed(i.paths)}
	if i.pluginDir != "" {
		src.Flags.PluginDir = &i.pluginDir
	}
	agent, err := config.Load(src)
	if err != nil {
		return err
	}
	i.cfg.Versions, i.cfg.Arch = []string{i.version}, runtime.GOARCH
	i.cfg.Args = map[string][]string{}
	for _, p := range agent.Plugins {
		i.cfg.Args[p.Name] = p.Args
	}
	i.cfg.Dir, i.cfg.Signing, i.cfg.HTTP = agent.PluginDir, agent.PluginSigning, install.NewHTTP()
	return nil
}

func installPlugin(a *cli.App) *cobra.Command {
	var i installing
	cmd := &cobra.Command{
		Use: "install SOURCE [NAME]", Short: "Put a plugin into the plugin directory, checked",
		Long: `Put a plugin into the plugin directory of this host as NAME_vX.Y.Z, from which a running
agent takes it by itself. Of a source with several versions it takes the highest one for
this machine that -version allows; pre-releases only if -version names one. SOURCE is

  FILE, or a .tar.gz     called NAME, NAME_vX.Y.Z or NAME_vX.Y.Z_OS_ARCH
  DIRECTORY              with such files
  https://HOST/FILE      likewise
  https://HOST/FOLDER/   with a SHA256SUMS that lists such files
  oci://HOST/REPOSITORY  an artifact whose tags are versions, or with :TAG or @DIGEST

Before the binary is put in place it must have the sum of -sha256 and of the SHA256SUMS
beside it, be a program for this machine, be signed if the agent's plugin_signing asks for
it (FILE.minisig, or SHA256SUMS.minisig), and report its name and its version when it is
started. Registries get the credentials that docker login has stored; certificates are
checked against the system's, or those of SSL_CERT_FILE.

No agent is needed. If one runs, this waits until the binary serves, for a minute at most. The
exit code is 4 when it does not come up or cannot take over; callers then keep the process
that they have.`,
		Example: "pannier agent plugin install ./csi-bridge_v1.2.0\n" +
			"pannier agent plugin install -version '~> 1.2' oci://registry.example.com/plugins/csi-bridge",
	}
	i.flags(cmd)
	cmd.RunE = a.Do(func(ctx context.Context, args []string) error {
		i.cfg.Source, i.cfg.Name = args[0], append(args, "")[1]
		return i.run(ctx, a, install.Install, install.Redacted(args[0]), "is installed already")
	})
	return cmd
}

func upgradePlugin(a *cli.App) *cobra.Command {
	var i installing
	cmd := &cobra.Command{
		Use: "upgrade NAME", Short: "Install the newest version of a plugin from where it was installed",
		Long: `Install the newest version of a plugin from the source that it was installed from last,
beside the older ones. Without -version the constraint of that installation counts. Older
versions stay in the plugin directory until their files are removed.`,
		Example: "pannier agent plugin upgrade csi-bridge",
	}
	i.flags(cmd)
	cmd.RunE = a.Do(func(ctx context.Context, args []string) error {
		i.cfg.Name = args[0]
		return i.run(ctx, a, install.Upgrade, "plugin "+args[0], "is the newest that its source has and the constraint allows")
	})
	return cmd
}

// run installs what is at a source, shows it, and waits until it serves; already says what a plugin is that was there.
func (i *installing) run(ctx context.Context, a *cli.App,
	do func(context.Context, install.Config) (install.Installed, error), source, already string,
) error {
	if err := i.complete(); err != nil {
		return err
	}
	done := a.Announce(ctx, func(context.Context) string { return "waiting for the download of " + source })
	got, err := do(ctx, i.cfg)
	if done(); err != nil {
		return err
	}
	is := already
	if got.New {
		is = "is installed"
	}
	if got.Signed {
		is += ", signed"
	}
	if !got.Remembered {
		a.Note("the source is not remembered, because its address may have secrets: pannier agent plugin upgrade will not know it")
	}
	err = a.Done(got, nil, "plugin %q: version %s %s: %s (sha256 %.12s)", got.Name, got.Version, is, got.Path, got.SHA256)
	if err != nil || !i.wait {
		return err
	}
	return awaitServing(ctx, a, got)
}

// awaitServing waits until the agent's process of the binary serves. Where no agent has it, it does not wait.
func awaitServing(ctx context.Context, a *cli.App, got install.Installed) error {
	client, err := a.Client()
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, time.Minute) // the agent gives up sooner
	defer cancel()
	resp, err := client.Plugins.SwapPlugin(within, &hostv1.SwapPluginRequest{Name: got.Name, Sha256: got.SHA256})
	p, unreachable := resp.GetPlugin(), (*api.UnreachableError)(nil)
	switch {
	case errors.As(err, &unreachable):
		a.Note("no agent answers at %s: it takes the plugin when it starts", a.Address())
		return nil
	case connect.CodeOf(err) == connect.CodeNotFound:
		a.Note("the agent at %s does not find the plugin: it has another plugin_dir", a.Address())
		return nil
	case err == nil && p.GetSha256() == got.SHA256:
		a.Note("generation %d serves (process %d)", p.GetGeneration(), p.GetPid())
		return nil
	case err == nil:
		err = cli.Coded(cli.ExitRefused, fmt.Errorf("plugin %q: version %s is installed, and version %s goes on to serve",
			got.Name, got.Version, p.GetVersion()))
	}
	return cli.Hinted(err, "it is installed; pannier plugin versions %s shows what serves, waits and is refused", got.Name)
}
