//go:build !client

package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/system/process"
)

// agentFlags are the agent's own flags; only given ones override the files.
type agentFlags struct {
	paths                                      []string
	dev, check                                 bool
	name, dataDir, pluginDir, socket, logLevel string
	httpPort, bootstrapExpect                  int
	server, rehearse                           bool
	join                                       []string
}

func (a *app) agentCommand() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use: "agent", Short: "Run the agent of this host in the foreground, reload, upgrade or stop it",
		Long: `Run the agent of this host in the foreground, until SIGINT or SIGTERM. SIGHUP makes it read
its configuration again (see pannier agent reload).

Flags override PANNIER_* variables in the environment (PANNIER_DATA_DIR and so on), and
these override the files of -config.

-dev needs no configuration: data and socket are in a temporary folder, which it prints, and where
the http port is taken another one is used, so several may run on a machine.

-check starts nothing and reports mistakes with file and line: of the files themselves, and
plugins, drivers' programs and users that are not on this machine.`,
		Example: `pannier agent -dev
pannier agent -config /etc/pannier
pannier agent -config /etc/pannier -check`,
		Args: exactly(),
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.dev, "dev", false, "try it out: temporary data, and a csi-local driver with the id local")
	flags.StringArrayVar(&f.paths, "config", nil,
		"`PATH` of a configuration file, or of a folder of them; may be given more than once")
	flags.BoolVar(&f.check, "check", false, "check the configuration, and start nothing")
	flags.StringVar(&f.name, "name", "", "the `NAME` of this node (default: the hostname)")
	flags.StringVar(&f.dataDir, "data-dir", "", "the `FOLDER` of all persistent data (default "+config.DefaultDataDir+")")
	flags.StringVar(&f.pluginDir, "plugin-dir", "",
		"the `FOLDER` of the plugins (default: plugins/ beside this program, then /usr/lib/pannier/plugins)")
	flags.StringVar(&f.socket, "socket", "", "the `PATH` of the API's socket (default "+config.DefaultSocket+")")
	flags.IntVar(&f.httpPort, "http-port", config.DefaultHTTPPort,
		"the `PORT` for health, metrics and public keys; 0: any free one")
	flags.StringVar(&f.logLevel, "log-level", "info", "the least `LEVEL` to log: trace, debug, info, warn or error")
	flags.BoolVar(&f.server, "server", true, "keep a copy of the ledger and vote; =false: a node only")
	flags.IntVar(&f.bootstrapExpect, "bootstrap-expect", 1,
		"how many servers (`N`) must meet before the cluster is formed")
	flags.StringArrayVar(&f.join, "join", nil,
		"the `ADDRESS` of an agent to join, HOST or HOST:PORT; may be given more than once")
	// The agent gives it to the program that is to replace it, and tells it the rest in another way.
	flags.BoolVar(&f.rehearse, "rehearse", false, "only show that the agent would come up")
	if err := flags.MarkHidden("rehearse"); err != nil {
		panic(err) // there is no such flag
	}
	cmd.RunE = a.do(func(ctx context.Context, _ []string) error { return a.runAgent(ctx, cmd, &f) })
	return cmd
}

func (a *app) runAgent(ctx context.Context, cmd *cobra.Command, f *agentFlags) (err error) {
	if err := process.KeepPrivate(); err != nil {
		return err
	}
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
		FreePort: freePort,
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
	if f.check {
		if err := a.opts.CheckAgent(cfg); err != nil {
			return err
		}
		return a.say("the configuration is valid")
	}
	if f.dev {
		a.note("an agent for trying out, with its data in %s; in another shell:", cfg.DataDir)
		a.note("  export PANNIER_ADDR=unix://%s", cfg.Socket)
		if cfg.HTTPPort == 0 {
			a.note("port %d is taken, by another agent perhaps: health and metrics are at a free one, which the log names",
				config.DefaultHTTPPort)
		}
	}
	return a.opts.RunAgent(ctx, cfg, a.opts.Version, a.err)
}

// freePort returns the port of agents for health and metrics or, if it is taken, 0: any free one.
func freePort() int {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp",
		net.JoinHostPort("localhost", strconv.Itoa(config.DefaultHTTPPort)))
	if err != nil {
		return 0
	}
	_ = l.Close() // opened only for the test
	return config.DefaultHTTPPort
}

// removeTemporary removes the data of a -dev agent, unless something is still mounted in it:
// removing through a mount would empty a volume.
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

// fenceCommand is run by the agent beside itself, not by people.
func (a *app) fenceCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "fence", Short: "Guard the volumes of a node that loses its servers", Hidden: true,
		Args: exactly(),
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the fence's `FOLDER`, in the agent's data directory")
	cmd.RunE = a.do(func(ctx context.Context, _ []string) error {
		if err := process.KeepPrivate(); err != nil {
			return err
		}
		return fence.Run(ctx, dir, a.err)
	})
	return cmd
}
