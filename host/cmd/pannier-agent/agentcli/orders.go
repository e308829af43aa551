package agentcli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/cli"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

const (
	// stopPatience is how long the command waits for the agent's end. A -dev agent stops its
	// workloads first.
	stopPatience = time.Minute
	// stopInterval is the pause between two checks for it.
	stopInterval = 50 * time.Millisecond
)

func stop(a *cli.App) *cobra.Command {
	var plugins bool
	cmd := &cobra.Command{
		Use: "stop", Short: "Stop the agent of this host, and wait until it has ended",
		Long: `Stop the agent of this host, as SIGTERM does, and wait until it has ended. Workloads keep
running, with their volumes and services. So do plugins and drivers when
leave_plugins_on_stop is true, and the next agent finds all of them. -plugins stops
them too.`,
		RunE: a.Do(func(ctx context.Context, _ []string) error { return stopAgent(ctx, a, plugins) }),
	}
	cmd.Flags().BoolVar(&plugins, "plugins", false, "stop the plugins, and the drivers that the agent runs, too")
	return cmd
}

func stopAgent(ctx context.Context, a *cli.App, plugins bool) error {
	client, err := a.Client()
	if err != nil {
		return err
	}
	process, pid := listener(ctx, client, a.Address())
	if process != nil {
		defer process.Close()
	}
	resp, err := client.Agent.Stop(ctx, &hostv1.StopRequest{Plugins: plugins})
	if err != nil {
		return err
	}
	a.Note("the agent is stopping (pid %d)", resp.GetPid())
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	if process != nil && int64(pid) == resp.GetPid() {
		err = awaitEnd(ctx, process)
	} else { // the agent is in another pid namespace
		err = awaitSilence(ctx, client)
	}
	if err != nil {
		return cli.Hinted(fmt.Errorf("the agent was asked to stop, and still runs: %w", err),
			"its log says what it waits for")
	}
	return a.Print(resp, nil, func() { sayStopped(a, resp) })
}

// sayStopped describes what keeps running without the agent.
func sayStopped(a *cli.App, m *hostv1.StopResponse) {
	a.Say("the agent is stopped")
	switch {
	case m.GetWorkloads() == 0:
	case m.GetWorkloadsStop():
		a.Say("%s stopped with the agent", cli.Was(m.GetWorkloads(), "workload"))
	default:
		a.Say("%s left running, with all that is mounted; the next agent finds them", cli.Was(m.GetWorkloads(), "workload"))
	}
	switch {
	case !m.GetPluginsStop():
		a.Say("plugins and drivers keep running; the next agent finds them")
	case m.GetWorkloads() == 0 || m.GetWorkloadsStop():
		a.Say("plugins, and the drivers that the agent ran, are stopped")
	default:
		a.Say("plugins, and the drivers that the agent ran, are stopped; a volume that its driver serves by a process of its own " +
			"(FUSE) cannot be read until the next agent has restarted it")
	}
}

const (
	// upgradePatience is how long the command waits for the outcome: the agent waits up to two minutes for calls.
	upgradePatience = 3 * time.Minute
	// upgradeInterval is the pause between two questions for it.
	upgradeInterval = 20 * time.Millisecond
)

func upgrade(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "upgrade", Short: "Replace the program of this host's agent, without refusing a call",
		Long: `Replace the program of this host's agent by the file that is now at its path, without refusing a
call: calls are answered late, by some tenths of a second. The agent keeps its process id.
Before that, the program must come up in a process of its own, with the agent's
configuration and data; otherwise the agent goes on as before, and the command fails and
says why. Workloads, plugins and drivers are not touched. The configuration is read again.`,
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			return upgradeAgent(ctx, a, client)
		}),
	}
}

func upgradeAgent(ctx context.Context, a *cli.App, client *api.Client) error {
	began, err := client.Agent.Upgrade(ctx, &hostv1.UpgradeRequest{})
	if err != nil {
		return err
	}
	a.Note("the agent (pid %d) is being upgraded from %s to %s", began.GetPid(), began.GetFrom(), began.GetTo())
	ctx, cancel := context.WithTimeout(ctx, upgradePatience)
	defer cancel()
	tick := time.NewTicker(upgradeInterval)
	defer tick.Stop()
	for {
		status, err := client.Agent.Status(ctx, &hostv1.StatusRequest{})
		if connect.CodeOf(err) == connect.CodePermissionDenied { // it did not ask for a token before
			return a.Done(began, nil, "the agent is upgraded; ACLs are on now: call with a token to check")
		}
		if err != nil {
			return cli.Hinted(fmt.Errorf("the agent's upgrade began, and its outcome is not known: %w", err), "its log has it")
		}
		if done := status.GetUpgrade(); done.GetAttempt() == began.GetAttempt() {
			if done.GetError() != "" {
				return fmt.Errorf("the agent was not upgraded, and goes on with %s: %s", done.GetFrom(), done.GetError())
			}
			return a.Done(done, nil, "the agent is upgraded from %s to %s", done.GetFrom(), done.GetTo())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return cli.Hinted(errors.New("the agent's upgrade began, and has not ended"), "its log says what it waits for")
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
		status, err := client.Agent.Status(ctx, &hostv1.StatusRequest{})
		if err != nil {
			return nil, 0
		}
		pid = int(status.GetPid())
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
		_, err := client.Agent.Status(ctx, &hostv1.StatusRequest{})
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

func leave(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "leave", Short: "Make the agent leave its cluster for good, and stop it",
		Long: `Make the agent leave its cluster for good, and stop it. Refused while workloads of its node
have volumes: drain the node first.`,
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.Members.Leave(ctx, &hostv1.LeaveRequest{})
			return a.Done(resp, err,
				"the agent has left the cluster and is stopping; to forget its node, run pannier node purge on a server")
		}),
	}
}

func reload(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "reload", Short: "Make the agent of this host read its configuration again",
		Long: `Make the agent of this host read its configuration again, as SIGHUP does, and take over its
plugin and csi_driver blocks and log_level while workloads run. A changed plugin is tried
in a new process, and what serves goes on if that fails. A driver in use keeps its process
until it is not. What else has changed is named, and needs a restart of the agent. If the
configuration has a mistake, nothing is changed.`,
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.Agent.Reload(ctx, &hostv1.ReloadRequest{})
			if err = a.Print(resp, err, func() { sayReloaded(a, resp) }); err != nil {
				return err
			}
			return refusedBlocks(resp)
		}),
	}
}

// sayReloaded describes what became of the configuration.
func sayReloaded(a *cli.App, m *hostv1.ReloadResponse) {
	for _, c := range m.GetChanges() {
		line := c.GetBlock() + ": " + c.GetOutcome()
		if c.GetMessage() != "" {
			line += ": " + c.GetMessage()
		}
		a.Say("%s", line)
	}
	if len(m.GetChanges()) == 0 {
		a.Say("no plugin or csi_driver block has changed")
	}
	for _, key := range m.GetRestart() {
		a.Say("%s: has changed, and needs a restart of the agent", key)
	}
}

// refusedBlocks is the error of a configuration of which not everything could be taken over.
func refusedBlocks(m *hostv1.ReloadResponse) error {
	var blocks []string
	for _, c := range m.GetChanges() {
		if c.GetOutcome() == "refused" {
			blocks = append(blocks, c.GetBlock())
		}
	}
	if len(blocks) == 0 {
		return nil
	}
	return cli.Hinted(cli.Coded(cli.ExitRefused,
		fmt.Errorf("%s is not taken over, and goes on as before",
			strings.Join(blocks, ", "))), "correct it, and run: pannier agent reload")
}
