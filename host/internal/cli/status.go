package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/host/internal/cli/bundle"
	"github.com/pannier/pannier/host/internal/system/events"
	escape "github.com/pannier/pannier/internal/printable"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// watchInterval is the pause between two screens.
const watchInterval = 2 * time.Second

func statusVerb() verb {
	var watch bool
	var node string
	return verb{
		use: "status", short: "Show the whole host on one screen", example: "\n-watch\n-node n2",
		flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&watch, "watch", "w", false, "show it again every "+watchInterval.String()+", until an interrupt")
			nodeFlag(f, &node)
		},
		run: func(ctx context.Context, c *call) error {
			for {
				resp, err := c.Agent.Status(ctx, &hostv1.StatusRequest{Node: node})
				err = c.Print(resp, err, func() {
					if watch && isTerminal(c.Out) {
						c.write("\x1b[H\x1b[2J") // empty it (ECMA-48, CUP and ED)
					}
					showStatus(c.Printer, resp)
				})
				if err == nil && !watch {
					err = oneCluster(ctx, c)
				}
				if !watch || err != nil && ctx.Err() == nil {
					return err
				}
				select {
				case <-time.After(watchInterval):
				case <-ctx.Done():
					return nil // watching ends by an interrupt
				}
			}
		},
	}
}

func showStatus(p *Printer, s *hostv1.StatusResponse) {
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
		t.Row("Not released", Cell{fmt.Sprintf("workload %q, %s", r.GetWorkload(), releaseText(r, s.GetName())), Yellow})
	}
	p.Show(t)
	p.heading("Plugins")
	showPlugins(p, s.GetPlugins())
	p.heading("Drivers")
	driverColumns.show(p, s.GetDrivers())
	if len(s.GetDevices()) > 0 {
		p.heading("Devices")
		deviceColumns.show(p, s.GetDevices())
	}
	for _, leftover := range s.GetLeftovers() {
		p.Note("warning: %s belongs to no known workload; inspect it, then unmount or remove it", leftover)
	}
}

// releaseText describes a release that has to wait.
func releaseText(r *hostv1.Release, node string) string {
	text := fmt.Sprintf("failed tries: %d, the first %s: %s", r.GetTries(), since(r.GetSince()), r.GetError())
	if r.GetCommand() != "" {
		text += "; to end that: " + on(node, r.GetCommand())
	}
	return text
}

// keptEvents is how many events an agent keeps.
const keptEvents = events.DefaultSize

func eventsVerb() verb {
	req := &hostv1.EventsRequest{}
	var given *pflag.FlagSet
	var since string
	return verb{
		use: "events", short: "Show what happened on the host",
		long: `Show the last events of the host, also those of before its agent was restarted, and with
-follow new ones as they happen. The agent keeps the last 1000. With -o json each event is one
line.`,
		example: "-recent 50 -follow\n-since 2h -topic volume -topic claim",
		flags: func(f *pflag.FlagSet) {
			given = f
			f.BoolVarP(&req.Follow, "follow", "f", false, "go on with new events")
			f.Int32Var(&req.Recent, "recent", 20,
				"how many of the last events to show first, at most 1000; with -since all of them, unless it is given")
			f.StringVar(&since, "since", "", "show events since a `TIME` (RFC 3339), or a duration ago, such as 90m")
			f.StringArrayVar(&req.Topics, "topic", nil, "show events of a `TOPIC` only: "+strings.Join(events.Topics, ", ")+
				"; may be given more than once")
			nodeFlag(f, &req.Node)
		},
		run: func(ctx context.Context, c *call) (err error) {
			if req.Since, err = sinceTime(since, time.Now()); err != nil {
				return Usage("-since: %w", err)
			}
			if req.Since != nil && !given.Changed("recent") {
				req.Recent = keptEvents
			}
			stream, err := c.Agent.Events(ctx, req)
			return each(ctx, stream, err, c.showEvent)
		},
	}
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

func (p *Printer) showEvent(m *hostv1.EventsResponse) error {
	e := m.GetEvent()
	line := fmt.Sprintf("%s  %-8s  %-12s  %s  %s", e.GetTime().AsTime().Local().Format(time.DateTime),
		e.GetTopic(), e.GetType(), e.GetSubject(), e.GetMessage())
	if details := joinMap(e.GetDetails()); details != "" {
		line += "  " + details
	}
	return p.printLine(e, func() { p.Say("%s", line) })
}

func monitorVerb() verb {
	req := &hostv1.MonitorRequest{}
	return verb{
		use: "monitor", short: "Follow the agent's log, at a level of its own", example: "-log-level debug",
		long: `Follow the log of an agent from now on, until it is interrupted. -log-level changes nothing of what
the agent itself writes. Lines with a secret that is known here (see pannier debug) are left out. Who
reads too slowly loses lines, and is told how many; the agent does not wait.`,
		flags: func(f *pflag.FlagSet) {
			f.StringVar(&req.LogLevel, "log-level", "info", "the least `LEVEL` to show: trace, debug, info, warn or error")
		},
		run: func(ctx context.Context, c *call) error {
			token, err := c.token()
			if err != nil {
				return err
			}
			var secrets bundle.Bundle // for the search only
			secrets.Secret("the token of this command", token)
			stream, err := c.Agent.Monitor(ctx, req)
			return each(ctx, stream, err, func(m *hostv1.MonitorResponse) error {
				for _, path := range m.GetSecretFiles() {
					secrets.SecretFile(path)
				}
				if m.GetLost() > 0 {
					c.Note("%s lost, because they were read too slowly", Was(m.GetLost(), "line"))
				}
				if whose := secrets.Reveals([]byte(m.GetLine())); whose != "" {
					c.Note("a line is left out, because it has a secret in it: %s", whose)
					m.Line = ""
				}
				if m.GetLine() == "" {
					return nil
				}
				return c.showLogLine(m)
			})
		},
	}
}
