package agentcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"

	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"

	"github.com/pannier/pannier/host/internal/agent"
	"github.com/pannier/pannier/host/internal/cli"
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
	server, try                                bool
	join                                       []string
}

// Main runs one command and returns the exit code (see package cli).
func Main(o cli.Options) int {
	a := cli.New(o)
	return a.Run(command(a, agent.Run, agent.Check))
}

// runAgent is agent.Run, and checkAgent agent.Check.
type (
	runAgent   func(ctx context.Context, cfg *config.Agent, version string, logs io.Writer) error
	checkAgent func(cfg *config.Agent) error
)

// command returns the root of the program's commands.
func command(a *cli.App, run runAgent, check checkAgent) *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use: "pannier-agent", Short: "Run the agent of this host in the foreground, reload, upgrade or stop it",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "pannier agent"},
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
	}
	cmd.AddCommand(reload(a), upgrade(a), stop(a), leave(a), fenceCommand(a),
		a.Noun("plugin", "Files of plugins", installPlugin(a), upgradePlugin(a), pluginInfo(a), pluginTest(a), newPlugin(a)))
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
	flags.BoolVar(&f.try, "try", false, "only show that the agent would come up")
	if err := flags.MarkHidden("try"); err != nil {
		panic(err) // there is no such flag
	}
	cmd.RunE = a.Do(func(ctx context.Context, _ []string) error { return f.run(ctx, a, cmd, run, check) })
	return a.Root(cmd)
}

// given returns a flag's value; nil: it was not given.
func given[T any](cmd *cobra.Command, name string, value *T) *T {
	if !cmd.Flags().Changed(name) {
		return nil
	}
	return value
}

func (f *agentFlags) run(ctx context.Context, a *cli.App, cmd *cobra.Command, run runAgent,
	check checkAgent,
) (err error) {
	if err := process.KeepPrivate(); err != nil {
		return err
	}
	a.NoHints = f.try // the agent passes on the last line
	temporary := ""
	cfg, err := config.Load(config.Source{
		Paths: f.paths, Dev: f.dev,
		Flags: config.Overrides{
			Name: given(cmd, "name", &f.name), DataDir: given(cmd, "data-dir", &f.dataDir),
			PluginDir: given(cmd, "plugin-dir", &f.pluginDir), Socket: given(cmd, "socket", &f.socket),
			LogLevel: given(cmd, "log-level", &f.logLevel), HTTPPort: given(cmd, "http-port", &f.httpPort),
			Server: given(cmd, "server", &f.server), BootstrapExpect: given(cmd, "bootstrap-expect", &f.bootstrapExpect),
			Join: f.join,
		},
		FreePort: freePort,
		TempDir: func() (string, error) {
			temporary, err = os.MkdirTemp("", "pannier-dev-")
			return temporary, err
		},
	})
	defer func() {
		if temporary != "" {
			err = errors.Join(err, removeTemporary(a, temporary))
		}
	}()
	if err != nil && !f.check && !f.try {
		if refused, failed := agent.Refuse(ctx, err); refused {
			return errors.Join(cli.Coded(agent.ExitConfig, err), failed)
		}
	}
	if err != nil {
		return err
	}
	if f.check {
		if err = check(cfg); err == nil {
			a.Say("the configuration is valid")
		}
		return err
	}
	if f.dev {
		a.Note("an agent for trying out, with its data in %s; in another shell:", cfg.DataDir)
		a.Note("  export PANNIER_ADDR=unix://%s", cfg.Socket)
		if cfg.HTTPPort == 0 {
			a.Note("port %d is taken, by another agent perhaps: health and metrics are at a free one, which the log names",
				config.DefaultHTTPPort)
		}
	}
	return run(ctx, cfg, a.Options.Version, a.Err)
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
func removeTemporary(a *cli.App, dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("look for mounts in %s: %w", dir, err)
	}
	if len(mounts) > 0 {
		a.Note("warning: %s stays: %s is still mounted in it; unmount and remove it", dir, mounts[0].Mountpoint)
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the temporary data: %w", err)
	}
	return nil
}

// fenceCommand is run by the agent beside itself, not by people.
func fenceCommand(a *cli.App) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "fence", Short: "Guard the volumes of a node that loses its servers", Hidden: true,
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the fence's `FOLDER`, in the agent's data directory")
	cmd.RunE = a.Do(func(ctx context.Context, _ []string) error {
		if err := process.KeepPrivate(); err != nil {
			return err
		}
		return fence.Run(ctx, dir, a.Err)
	})
	return cmd
}
