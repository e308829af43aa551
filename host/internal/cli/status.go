package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the whole host on one screen",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.Agent.Status(ctx, connect.NewRequest(&hostv1.StatusRequest{}))
			if err != nil {
				return err
			}
			return a.print(resp.Msg, func() error { return a.showStatus(resp.Msg) })
		}),
	}
}

func (a *app) showStatus(s *hostv1.StatusResponse) error {
	t := newTable()
	state := cell{"ready", green}
	if !s.GetReady() {
		state = cell{strings.TrimSuffix("not ready: "+s.GetMessage(), ": "), red}
	}
	leader := "follower"
	if s.GetLeader() {
		leader = "leader"
	}
	t.row("Host", fmt.Sprintf("%s in %s", s.GetName(), s.GetDatacenter()))
	t.row("State", state)
	t.row("Version", s.GetVersion())
	t.row("Process", fmt.Sprintf("%d, up %s", s.GetPid(), age(s.GetStartedAt())))
	t.row("Ledger", fmt.Sprintf("%s, index %d", leader, s.GetRaftIndex()))
	t.row("Data", s.GetDataDir())
	t.row("Socket", s.GetSocket())
	t.row("HTTP", s.GetHttpAddress())
	t.row("Volumes", fmt.Sprintf("%s, %s, %d being released", count(s.GetVolumes(), "volume"), count(s.GetClaims(), "claim"), s.GetReleasing()))
	var workloads []string
	for _, name := range slices.Sorted(maps.Keys(s.GetWorkloads())) {
		workloads = append(workloads, fmt.Sprintf("%d %s", s.GetWorkloads()[name], name))
	}
	t.row("Workloads", strings.Join(workloads, ", "))
	if err := a.show(t); err != nil {
		return err
	}
	if err := a.heading("Plugins"); err != nil {
		return err
	}
	if err := a.showPlugins(s.GetPlugins()); err != nil {
		return err
	}
	if err := a.heading("Drivers"); err != nil {
		return err
	}
	if err := a.showDrivers(s.GetDrivers()); err != nil {
		return err
	}
	if len(s.GetDevices()) > 0 {
		if err := a.heading("Devices"); err != nil {
			return err
		}
		if err := a.showDevices(s.GetDevices()); err != nil {
			return err
		}
	}
	for _, leftover := range s.GetLeftovers() {
		a.note("warning: nothing explains %s; look at it, and unmount or remove it", leftover)
	}
	return nil
}

func (a *app) heading(text string) error {
	_, err := fmt.Fprintf(a.out, "\n%s\n", text)
	return err
}
