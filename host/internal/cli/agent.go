package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"

	"github.com/pannier/pannier/host/internal/config"
)

// agentFlags are the agent's own flags; only those that were given beat the files.
type agentFlags struct {
	paths                                      []string
	dev                                        bool
	name, dataDir, pluginDir, socket, logLevel string
	httpPort, bootstrapExpect                  int
	server                                     bool
	join                                       []string
}

func (a *app) agentCommand() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use: "agent", Short: "Run the agent of this host in the foreground, or stop it",
		Long: `Run the agent of this host in the foreground, until SIGINT or SIGTERM.

A flag wins over PANNIER_* in the environment (PANNIER_DATA_DIR and so on), and
that over the files of -config.`,
		Args: exactly(),
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.dev, "dev", false, "for trying out: temporary data, and a csi-local driver with the id local")
	flags.StringArrayVar(&f.paths, "config", nil, "`PATH` of a configuration file, or of a folder of them; may be given more than once")
	flags.StringVar(&f.name, "name", "", "the `NAME` of this node (default: the hostname)")
	flags.StringVar(&f.dataDir, "data-dir", "", "the `FOLDER` for all that lasts (default "+config.DefaultDataDir+")")
	flags.StringVar(&f.pluginDir, "plugin-dir", "", "the `FOLDER` of the plugins (default: plugins/ beside this program, then /usr/lib/pannier/plugins)")
	flags.StringVar(&f.socket, "socket", "", "the `PATH` of the API's socket (default "+config.DefaultSocket+")")
	flags.IntVar(&f.httpPort, "http-port", config.DefaultHTTPPort, "the `PORT` for health, metrics and public keys; 0: any free one")
	flags.StringVar(&f.logLevel, "log-level", "info", "the least `LEVEL` to log: trace, debug, info, warn or error")
	flags.BoolVar(&f.server, "server", true, "keep a copy of the ledger and vote; =false: a node only")
	flags.IntVar(&f.bootstrapExpect, "bootstrap-expect", 1, "how many servers (`N`) meet before the ledger is begun")
	flags.StringArrayVar(&f.join, "join", nil, "the `ADDRESS` of an agent to join, HOST or HOST:PORT; may be given more than once")
	cmd.RunE = a.do(func(ctx context.Context, _ []string) error { return a.runAgent(ctx, cmd, &f) })
	cmd.AddCommand(a.agentStop(), a.agentLeave())
	return cmd
}

func (a *app) runAgent(ctx context.Context, cmd *cobra.Command, f *agentFlags) (err error) {
	given := func(name string, value *string) *string {
		if !cmd.Flags().Changed(name) {
			return nil
		}
		return value
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program's folder: %w", err)
	}
	temporary := ""
	src := config.Source{
		Paths: f.paths, Dev: f.dev, BinDir: filepath.Dir(exe),
		Flags: config.Overrides{
			Name: given("name", &f.name), DataDir: given("data-dir", &f.dataDir), PluginDir: given("plugin-dir", &f.pluginDir),
			Socket: given("socket", &f.socket), LogLevel: given("log-level", &f.logLevel),
		},
		TempDir: func() (string, error) {
			temporary, err = os.MkdirTemp("", "pannier-dev-")
			return temporary, err
		},
	}
	if cmd.Flags().Changed("http-port") {
		src.Flags.HTTPPort = &f.httpPort
	}
	if cmd.Flags().Changed("server") {
		src.Flags.Server = &f.server
	}
	if cmd.Flags().Changed("bootstrap-expect") {
		src.Flags.BootstrapExpect = &f.bootstrapExpect
	}
	if cmd.Flags().Changed("join") {
		src.Flags.Join = f.join
	}
	defer func() {
		if temporary != "" {
			err = errors.Join(err, a.removeTemporary(temporary))
		}
	}()
	cfg, err := config.Load(src)
	if err != nil {
		return err
	}
	if f.dev {
		a.note("an agent for trying out, with its data in %s; in another shell:", cfg.DataDir)
		a.note("  export PANNIER_ADDR=unix://%s", cfg.Socket)
	}
	return a.opts.RunAgent(ctx, cfg, a.opts.Version, a.err)
}

// removeTemporary removes the data of an agent for trying out, unless something is
// still mounted in it: removing through a mount would empty a volume.
func (a *app) removeTemporary(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("look for mounts in %s: %w", dir, err)
	}
	if len(mounts) > 0 {
		a.note("warning: %s stays: %s is still mounted in it; unmount and remove it", dir, mounts[0].Mountpoint)
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the temporary data: %w", err)
	}
	return nil
}
