package cli

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) deviceCommand() *cobra.Command {
	return a.noun("device", "Devices of this node, such as GPUs, that workloads are given", a.deviceList(), a.deviceStats())
}

func (a *app) deviceList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the devices, and which workload has which",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.Devices.ListDevices(ctx, connect.NewRequest(&hostv1.ListDevicesRequest{}))
			if err != nil {
				return err
			}
			return a.print(resp.Msg, func() error { return a.showDevices(resp.Msg.GetGroups()) })
		}),
	}
}

func (a *app) deviceStats() *cobra.Command {
	var interval time.Duration
	cmd := &cobra.Command{
		Use: "stats", Short: "Show how the devices are used, once or again and again",
		Long: "Show how the devices are used, as far as their plugins can tell. With -o json each answer is one line.",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			if interval < 0 || interval > 0 && interval < 100*time.Millisecond {
				return &usageError{err: errors.New("-interval: 100ms at least")}
			}
			client, err := a.api()
			if err != nil {
				return err
			}
			stream, err := client.Devices.DeviceStats(ctx, connect.NewRequest(&hostv1.DeviceStatsRequest{IntervalMs: interval.Milliseconds()}))
			if err != nil {
				return err
			}
			defer stream.Close()
			for stream.Receive() {
				if err := a.showDeviceStats(stream.Msg()); err != nil {
					return err
				}
			}
			if ctx.Err() != nil {
				return nil // Interrupted, which is how following ends.
			}
			return stream.Err()
		}),
	}
	cmd.Flags().DurationVar(&interval, "interval", 0, "go on with an answer every `DURATION`")
	return cmd
}

func (a *app) showDevices(groups []*hostv1.DeviceGroup) error {
	if len(groups) == 0 {
		a.note("no devices; a device plugin in the agent's plugin_dir tells of them")
		return nil
	}
	t := newTable("GROUP", "ID", "HEALTH", "WORKLOAD", "PLUGIN", "LOCALITY", "ATTRIBUTES", "MESSAGE")
	for _, g := range groups {
		for _, d := range g.GetDevices() {
			holder := d.GetWorkload()
			if holder != "" {
				holder = d.GetNamespace() + "/" + holder
			}
			t.row(strings.Join([]string{g.GetVendor(), g.GetType(), g.GetName()}, "/"), d.GetId(), healthy(d.GetHealthy()), holder,
				g.GetPlugin(), d.GetLocality(), joinMap(g.GetAttributes()), d.GetMessage())
		}
	}
	return a.show(t)
}

func (a *app) showDeviceStats(m *hostv1.DeviceStatsResponse) error {
	if a.format == formatJSON {
		return a.printJSON(m, "")
	}
	for _, plugin := range slices.Sorted(maps.Keys(m.GetProblems())) {
		a.note("warning: plugin %q: %s", plugin, m.GetProblems()[plugin])
	}
	if len(m.GetDevices()) == 0 {
		a.note("no statistics: no device plugin has any")
		return nil
	}
	t := newTable("PLUGIN", "ID", "SUMMARY", "VALUES")
	for _, d := range m.GetDevices() {
		var values []string
		for _, key := range slices.Sorted(maps.Keys(d.GetValues())) {
			values = append(values, key+"="+strconv.FormatFloat(d.GetValues()[key], 'f', -1, 64))
		}
		t.row(d.GetPlugin(), d.GetId(), d.GetSummary(), strings.Join(values, " "))
	}
	return a.show(t)
}

// showGiven tells which devices a workload has.
func (a *app) showGiven(devices []*hostv1.GivenDevice) error {
	if len(devices) == 0 {
		return nil
	}
	if err := a.heading("Devices"); err != nil {
		return err
	}
	t := newTable("REQUEST", "GROUP", "ID", "PLUGIN")
	for _, d := range devices {
		t.row(d.GetRequest(), d.GetGroup(), d.GetId(), d.GetPlugin())
	}
	return a.show(t)
}

// rowsOfReservation adds what a workload's devices need to a table of mounts.
func rowsOfReservation(t *table, r *hostv1.DeviceReservation) {
	for _, m := range r.GetMounts() {
		access := "read-write"
		if m.GetReadOnly() {
			access = "read-only"
		}
		t.row("", m.GetTaskPath(), m.GetHostPath(), access, "of a device")
	}
	for _, d := range r.GetNodes() {
		t.row("", d.GetTaskPath(), d.GetHostPath(), d.GetPermissions(), "device")
	}
}
