package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the whole host on one screen",
		Example: "pannier status",
		Args:    exactly(),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, _ []string) error {
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
	t.row("Volumes", fmt.Sprintf("%s, %s, %d being released", count(s.GetVolumes(), "volume"),
		count(s.GetClaims(), "claim"), s.GetReleasing()))
	var workloads []string
	for _, name := range slices.Sorted(maps.Keys(s.GetWorkloads())) {
		workloads = append(workloads, fmt.Sprintf("%d %s", s.GetWorkloads()[name], name))
	}
	t.row("Workloads", strings.Join(workloads, ", "))
	for _, r := range s.GetReleases() {
		t.row("Not released", cell{fmt.Sprintf("workload %q, %s", r.GetWorkload(), releaseText(r)), yellow})
	}
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
		a.note("warning: %s belongs to no known workload; inspect it, then unmount or remove it", leftover)
	}
	return nil
}

// releaseText describes a release that has to wait.
func releaseText(r *hostv1.Release) string {
	text := fmt.Sprintf("failed tries: %d, the first %s: %s", r.GetTries(), since(r.GetSince()), r.GetError())
	if r.GetCommand() != "" {
		text += "; to end that use: " + r.GetCommand()
	}
	return text
}

func (a *app) heading(text string) error {
	_, err := fmt.Fprintf(a.out, "\n%s\n", text)
	return err
}

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	var recent int32
	cmd := &cobra.Command{
		Use: "events", Short: "Show what happened on the host",
		Long: `Show the last events of the host, also those of before its agent was restarted, and with
-follow new ones as they happen. With -o json each event is one line.`,
		Example: "pannier events -recent 50 -follow",
		Args:    exactly(),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, _ []string) error {
			if recent < 0 || recent > 1000 {
				return &usageError{err: errors.New("-recent: from 0 to 1000")}
			}
			stream, err := client.Agent.Events(ctx, connect.NewRequest(&hostv1.EventsRequest{Recent: recent, Follow: follow}))
			if err != nil {
				return err
			}
			defer stream.Close()
			for stream.Receive() {
				if err := a.showEvent(stream.Msg()); err != nil {
					return err
				}
			}
			if ctx.Err() != nil {
				return nil // Following ends by an interrupt.
			}
			return stream.Err()
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new events")
	cmd.Flags().Int32Var(&recent, "recent", 20, "how many of the last events to show first, at most 1000")
	return cmd
}

func (a *app) showEvent(m *hostv1.EventsResponse) error {
	if a.format == formatJSON {
		return a.printJSON(m.GetEvent(), "")
	}
	e := m.GetEvent()
	line := fmt.Sprintf("%s  %-8s  %-12s  %s  %s", e.GetTime().AsTime().Local().Format(time.DateTime),
		e.GetTopic(), e.GetType(), e.GetSubject(), e.GetMessage())
	if details := joinMap(e.GetDetails()); details != "" {
		line += "  " + details
	}
	return a.say(line)
}
