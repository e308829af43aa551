package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
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
	cmd.AddCommand(a.agentReload(), a.agentUpgrade(), a.agentStop(), a.agentLeave())
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

const (
	// stopPatience is how long the command waits for the agent's end. A -dev agent stops its
	// workloads first.
	stopPatience = time.Minute
	// stopInterval is the pause between two checks for it.
	stopInterval = 50 * time.Millisecond
)

func (a *app) agentStop() *cobra.Command {
	var plugins bool
	cmd := &cobra.Command{
		Use: "stop", Short: "Stop the agent of this host, and wait until it has ended",
		Long: `Stop the agent of this host, as SIGTERM does, and wait until it has ended. Workloads keep
running, with their volumes and services. So do plugins and drivers when
leave_plugins_on_stop is true, and the next agent finds all of them. -plugins stops
them too.`,
		Example: "pannier agent stop",
		Args:    exactly(),
		RunE:    a.do(func(ctx context.Context, _ []string) error { return a.stopAgent(ctx, plugins) }),
	}
	cmd.Flags().BoolVar(&plugins, "plugins", false, "stop the plugins, and the drivers that the agent runs, too")
	return cmd
}

func (a *app) stopAgent(ctx context.Context, plugins bool) error {
	client, err := a.api()
	if err != nil {
		return err
	}
	process, pid := listener(ctx, client, a.agentAddress())
	if process != nil {
		defer process.Close()
	}
	resp, err := client.Agent.Stop(ctx, connect.NewRequest(&hostv1.StopRequest{Plugins: plugins}))
	if err != nil {
		return err
	}
	a.note("the agent is stopping (pid %d)", resp.Msg.GetPid())
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	if process != nil && int64(pid) == resp.Msg.GetPid() {
		err = awaitEnd(ctx, process)
	} else { // the agent is in another pid namespace
		err = awaitSilence(ctx, client)
	}
	if err != nil {
		return &hintError{
			fmt.Errorf("the agent was asked to stop, and still runs: %w", err),
			"its log says what it waits for",
		}
	}
	return a.print(resp.Msg, func() error {
		_, err := fmt.Fprintln(a.out, afterStop(resp.Msg))
		return err
	})
}

// afterStop describes what keeps running without the agent.
func afterStop(m *hostv1.StopResponse) string {
	lines := []string{"the agent is stopped"}
	switch {
	case m.GetWorkloads() == 0:
	case m.GetWorkloadsStop():
		lines = append(lines, fmt.Sprintf("%s stopped with the agent", was(m.GetWorkloads(), "workload")))
	default:
		lines = append(lines, fmt.Sprintf("%s running, with all that is mounted; the next agent finds them",
			count(m.GetWorkloads(), "workload")+keeps(m.GetWorkloads())))
	}
	switch {
	case !m.GetPluginsStop():
		lines = append(lines, "plugins and drivers keep running; the next agent finds them")
	case m.GetWorkloads() == 0 || m.GetWorkloadsStop():
		lines = append(lines, "plugins, and the drivers that the agent ran, are stopped")
	default:
		lines = append(lines,
			"plugins, and the drivers that the agent ran, are stopped; a volume that its driver serves by a process of its own (FUSE) "+
				"cannot be read until the next agent has restarted it")
	}
	return strings.Join(lines, "\n")
}

func keeps(n int64) string {
	if n == 1 {
		return " keeps"
	}
	return " keep"
}

func was(n int64, noun string) string {
	if n == 1 {
		return count(n, noun) + " was"
	}
	return count(n, noun) + " were"
}

const (
	// upgradePatience is how long the command waits for the outcome: the agent waits up to two minutes for calls.
	upgradePatience = 3 * time.Minute
	// upgradeInterval is the pause between two questions for it.
	upgradeInterval = 20 * time.Millisecond
)

func (a *app) agentUpgrade() *cobra.Command {
	return &cobra.Command{
		Use: "upgrade", Short: "Replace the program of this host's agent, without refusing a call",
		Long: `Replace the program of this host's agent by the file that is now at its path, without refusing a
call: calls are answered late, by some tenths of a second. The agent keeps its process id.
Before that, the program must come up in a process of its own, with the agent's
configuration and data; otherwise the agent goes on as before, and the command fails and
says why. Workloads, plugins and drivers are not touched. The configuration is read again.`,
		Example: "pannier agent upgrade",
		Args:    exactly(),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, _ []string) error {
			return a.upgradeAgent(ctx, client)
		}),
	}
}

func (a *app) upgradeAgent(ctx context.Context, client *api.Client) error {
	began, err := client.Agent.Upgrade(ctx, connect.NewRequest(&hostv1.UpgradeRequest{}))
	if err != nil {
		return err
	}
	a.note("the agent (pid %d) is being upgraded from %s to %s", began.Msg.GetPid(), began.Msg.GetFrom(),
		began.Msg.GetTo())
	ctx, cancel := context.WithTimeout(ctx, upgradePatience)
	defer cancel()
	tick := time.NewTicker(upgradeInterval)
	defer tick.Stop()
	for {
		status, err := client.Agent.Status(ctx, connect.NewRequest(&hostv1.StatusRequest{}))
		if err != nil {
			return &hintError{fmt.Errorf("the agent's upgrade began, and its outcome is not known: %w", err), "its log has it"}
		}
		if done := status.Msg.GetUpgrade(); done.GetAttempt() == began.Msg.GetAttempt() {
			if done.GetError() != "" {
				return fmt.Errorf("the agent was not upgraded, and goes on with %s: %s", done.GetFrom(), done.GetError())
			}
			return a.print(done, func() error {
				return a.say(fmt.Sprintf("the agent is upgraded from %s to %s", done.GetFrom(), done.GetTo()))
			})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return &hintError{errors.New("the agent's upgrade began, and has not ended"), "its log says what it waits for"}
		}
	}
}

// listener opens a pidfd of the agent that listens on a unix socket, which ends later than the
// socket; nil when it is unknown.
func listener(ctx context.Context, client *api.Client, address string) (pidfd *os.File, pid int) {
	path, ok := strings.CutPrefix(address, "unix://")
	if !ok {
		return nil, 0
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, 0
	}
	defer conn.Close()
	cred, err := process.AtSocket(conn.(*net.UnixConn))
	if err != nil || cred.Pid == 0 {
		return nil, 0
	}
	pid = int(cred.Pid)
	if pid == 1 { // systemd has opened the socket, and runs the agent in its own pid namespace
		status, err := client.Agent.Status(ctx, connect.NewRequest(&hostv1.StatusRequest{}))
		if err != nil {
			return nil, 0
		}
		pid = int(status.Msg.GetPid())
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, 0
	}
	return os.NewFile(uintptr(fd), "pidfd"), pid
}

// awaitEnd waits until a process has ended: its pidfd is then readable.
func awaitEnd(ctx context.Context, pidfd *os.File) error {
	for {
		fds := []unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(stopInterval.Milliseconds()))
		switch {
		case n > 0:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for its process: %w", err)
		}
	}
}

// awaitSilence waits until nobody answers.
func awaitSilence(ctx context.Context, client *api.Client) error {
	tick := time.NewTicker(stopInterval)
	defer tick.Stop()
	for {
		_, err := client.Agent.Status(ctx, connect.NewRequest(&hostv1.StatusRequest{}))
		if unreachable := (*api.UnreachableError)(nil); errors.As(err, &unreachable) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
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

func (a *app) agentLeave() *cobra.Command {
	return &cobra.Command{
		Use: "leave", Short: "Make the agent leave its cluster for good, and stop it",
		Long: `Make the agent leave its cluster for good, and stop it. Refused while workloads of its node
have volumes: drain the node first.`,
		Example: "pannier agent leave",
		Args:    exactly(),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.Members.Leave(ctx, connect.NewRequest(&hostv1.LeaveRequest{}))
			if err != nil {
				return err
			}
			return a.print(resp.Msg, func() error {
				return a.say(
					"the agent has left the cluster and is stopping; to forget its node, run pannier node purge on a server")
			})
		}),
	}
}
