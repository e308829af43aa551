package cli

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

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

const (
	// stopPatience is how long the command waits for the agent's end. One for trying out
	// stops its workloads before.
	stopPatience = time.Minute
	// stopInterval is between two looks whether it has come.
	stopInterval = 50 * time.Millisecond
)

func (a *app) agentStop() *cobra.Command {
	var plugins bool
	cmd := &cobra.Command{
		Use: "stop", Short: "Stop the agent of this host, and wait until it has",
		Long: `Stop the agent of this host, as SIGTERM does, and wait until it has. Workloads go on, with
their volumes and services. So do plugins and drivers, if leave_plugins_on_stop is true,
and the next agent finds all of them. With -plugins they end too.`,
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error { return a.stopAgent(ctx, plugins) }),
	}
	cmd.Flags().BoolVar(&plugins, "plugins", false, "stop the plugins, and the drivers that the agent runs, too")
	return cmd
}

func (a *app) stopAgent(ctx context.Context, plugins bool) error {
	client, err := a.api()
	if err != nil {
		return err
	}
	process, pid := listener(ctx, a.agentAddress())
	if process != nil {
		defer process.Close()
	}
	resp, err := client.Agent.Stop(ctx, connect.NewRequest(&hostv1.StopRequest{Plugins: plugins}))
	if err != nil {
		return err
	}
	a.note("the agent stops (pid %d)", resp.Msg.GetPid())
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	if process != nil && int64(pid) == resp.Msg.GetPid() {
		err = awaitEnd(ctx, process)
	} else { // it is in another pid namespace
		err = awaitSilence(ctx, client)
	}
	if err != nil {
		return &hintError{fmt.Errorf("the agent was asked to stop, and has not: %w", err), "its log tells what it waits for"}
	}
	return a.print(resp.Msg, func() error {
		_, err := fmt.Fprintln(a.out, afterStop(resp.Msg))
		return err
	})
}

// afterStop says what there is now without the agent.
func afterStop(m *hostv1.StopResponse) string {
	lines := []string{"the agent is stopped"}
	switch {
	case m.GetWorkloads() == 0:
	case m.GetWorkloadsStop():
		lines = append(lines, fmt.Sprintf("%s stopped with the agent", was(m.GetWorkloads(), "workload")))
	default:
		lines = append(lines, fmt.Sprintf("%s on, with all that is mounted; the next agent finds them",
			count(m.GetWorkloads(), "workload")+goes(m.GetWorkloads())))
	}
	switch {
	case !m.GetPluginsStop():
		lines = append(lines, "plugins and drivers go on; the next agent finds them")
	case m.GetWorkloads() == 0 || m.GetWorkloadsStop():
		lines = append(lines, "plugins, and the drivers that the agent ran, are stopped")
	default:
		lines = append(lines, "plugins, and the drivers that the agent ran, are stopped; a volume that its driver serves by a process of its own (FUSE) "+
			"cannot be read until the next agent has started it")
	}
	return strings.Join(lines, "\n")
}

func goes(n int64) string {
	if n == 1 {
		return " goes"
	}
	return " go"
}

func was(n int64, noun string) string {
	if n == 1 {
		return count(n, noun) + " was"
	}
	return count(n, noun) + " were"
}

// listener opens the process that listens on a unix socket (pidfd_open(2)), as its end
// is later than that of the socket; nil where it cannot be told.
func listener(ctx context.Context, address string) (pidfd *os.File, pid int) {
	path, ok := strings.CutPrefix(address, "unix://")
	if !ok {
		return nil, 0
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, 0
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, 0
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	if pid == 0 {
		return nil, 0
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

// awaitSilence waits until nobody answers any more.
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
