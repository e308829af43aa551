package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/host/internal/system/events"
	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// watchInterval is the pause between two screens.
const watchInterval = 2 * time.Second

func (a *App) statusCommand() *cobra.Command {
	var watch bool
	var node string
	cmd := &cobra.Command{
		Use: "status", Short: "Show the whole host on one screen",
		Example: "pannier status\npannier status -watch\npannier status -node n2",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			for {
				resp, err := client.Agent.Status(ctx, &hostv1.StatusRequest{Node: node})
				err = a.Print(resp, err, func() {
					if watch && isTerminal(a.Out) {
						a.write("\x1b[H\x1b[2J") // empty it (ECMA-48, CUP and ED)
					}
					a.showStatus(resp)
				})
				if !watch || err != nil && ctx.Err() == nil {
					return err
				}
				select {
				case <-time.After(watchInterval):
				case <-ctx.Done():
					return nil // watching ends by an interrupt
				}
			}
		}),
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again every "+watchInterval.String()+", until an interrupt")
	nodeFlag(cmd, &node)
	return cmd
}

func (a *App) showStatus(s *hostv1.StatusResponse) {
	t := NewTable()
	state := Cell{"ready", Green}
	if !s.GetReady() {
		state = Cell{strings.TrimSuffix("not ready: "+s.GetMessage(), ": "), Red}
	}
	leader := "follower"
	if s.GetLeader() {
		leader = "leader"
	}
	t.Row("Host", fmt.Sprintf("%s in %s", s.GetName(), s.GetDatacenter()))
	t.Row("State", state)
	t.Row("Version", s.GetVersion())
	t.Row("Process", fmt.Sprintf("%d, up %s", s.GetPid(), age(s.GetStartedAt())))
	t.Row("Ledger", fmt.Sprintf("%s, index %d", leader, s.GetRaftIndex()))
	t.Row("Data", s.GetDataDir())
	t.Row("Socket", s.GetSocket())
	t.Row("HTTP", s.GetHttpAddress())
	t.Row("Volumes", fmt.Sprintf("%s, %s, %d being released", escape.Count(s.GetVolumes(), "volume"),
		escape.Count(s.GetClaims(), "claim"), s.GetReleasing()))
	var workloads []string
	for _, name := range slices.Sorted(maps.Keys(s.GetWorkloads())) {
		workloads = append(workloads, fmt.Sprintf("%d %s", s.GetWorkloads()[name], name))
	}
	t.Row("Workloads", strings.Join(workloads, ", "))
	for _, r := range s.GetReleases() {
		t.Row("Not released", Cell{fmt.Sprintf("workload %q, %s", r.GetWorkload(), releaseText(r)), Yellow})
	}
	a.Show(t)
	a.heading("Plugins")
	a.showPlugins(s.GetPlugins())
	a.heading("Drivers")
	a.showDrivers(s.GetDrivers())
	if len(s.GetDevices()) > 0 {
		a.heading("Devices")
		a.showDevices(s.GetDevices())
	}
	for _, leftover := range s.GetLeftovers() {
		a.Note("warning: %s belongs to no known workload; inspect it, then unmount or remove it", leftover)
	}
}

// releaseText describes a release that has to wait.
func releaseText(r *hostv1.Release) string {
	text := fmt.Sprintf("failed tries: %d, the first %s: %s", r.GetTries(), since(r.GetSince()), r.GetError())
	if r.GetCommand() != "" {
		text += "; to end that: " + r.GetCommand()
	}
	return text
}

// keptEvents is how many events an agent keeps.
const keptEvents = events.DefaultSize

func (a *App) eventsCommand() *cobra.Command {
	req := &hostv1.EventsRequest{}
	var since string
	cmd := &cobra.Command{
		Use: "events", Short: "Show what happened on the host",
		Long: `Show the last events of the host, also those of before its agent was restarted, and with
-follow new ones as they happen. The agent keeps the last 1000. With -o json each event is one
line.`,
		Example: `pannier events -recent 50 -follow
pannier events -since 2h -topic volume -topic claim`,
	}
	flags := cmd.Flags()
	flags.BoolVarP(&req.Follow, "follow", "f", false, "go on with new events")
	flags.Int32Var(&req.Recent, "recent", 20,
		"how many of the last events to show first, at most 1000; with -since all of them, unless it is given")
	flags.StringVar(&since, "since", "", "show events since a `TIME` (RFC 3339), or a duration ago, such as 90m")
	flags.StringArrayVar(&req.Topics, "topic", nil, "show events of a `TOPIC` only: "+strings.Join(events.Topics, ", ")+
		"; may be given more than once")
	nodeFlag(cmd, &req.Node)
	cmd.RunE = a.WithClient(func(ctx context.Context, client *api.Client, _ []string) (err error) {
		if req.Since, err = sinceTime(since, time.Now()); err != nil {
			return Usage("-since: %w", err)
		}
		if req.Since != nil && !flags.Changed("recent") {
			req.Recent = keptEvents
		}
		stream, err := client.Agent.Events(ctx, req)
		return each(ctx, stream, err, a.showEvent)
	})
	return cmd
}

// sinceTime reads a time, or a duration before now; nil for an empty text.
func sinceTime(text string, now time.Time) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return timestamppb.New(now.Add(-ago)), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, fmt.Errorf("%q is neither a duration, such as 90m, nor a time, such as 2026-01-31T09:00:00Z", text)
	}
	return timestamppb.New(at), nil
}

func (a *App) showEvent(m *hostv1.EventsResponse) error {
	e := m.GetEvent()
	line := fmt.Sprintf("%s  %-8s  %-12s  %s  %s", e.GetTime().AsTime().Local().Format(time.DateTime),
		e.GetTopic(), e.GetType(), e.GetSubject(), e.GetMessage())
	if details := joinMap(e.GetDetails()); details != "" {
		line += "  " + details
	}
	return a.printLine(e, func() { a.Say("%s", line) })
}
