package cli

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) deviceCommand() *cobra.Command {
	return a.Noun("device", "Devices of this node, such as GPUs",
		&cobra.Command{
			Use: "list", Short: "List the devices, and which workload has which",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
				resp, err := client.Devices.ListDevices(ctx, &hostv1.ListDevicesRequest{})
				return a.Print(resp, err, func() { a.showDevices(resp.GetGroups()) })
			}),
		},
		a.deviceStats())
}

func (a *App) deviceStats() *cobra.Command {
	var interval time.Duration
	cmd := &cobra.Command{
		Use: "stats", Short: "Show how the devices are used",
		Long: `Show how the devices are used, as far as their plugins report it. With -o json each answer
is one line.`,
		Example: "pannier device stats -interval 5s",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			stream, err := client.Devices.DeviceStats(ctx, &hostv1.DeviceStatsRequest{IntervalMs: interval.Milliseconds()})
			return each(ctx, stream, err, func(m *hostv1.DeviceStatsResponse) error {
				return a.printLine(m, func() { a.showDeviceStats(m) })
			})
		}),
	}
	cmd.Flags().DurationVar(&interval, "interval", 0, "repeat the answer every `DURATION`")
	return cmd
}

func (a *App) showDevices(groups []*hostv1.DeviceGroup) {
	t := NewTable("GROUP", "ID", "HEALTH", "WORKLOAD", "PLUGIN", "LOCALITY", "ATTRIBUTES", "MESSAGE")
	for _, g := range groups {
		for _, d := range g.GetDevices() {
			holder := d.GetWorkload()
			if holder != "" {
				holder = d.GetNamespace() + "/" + holder
			}
			t.Row(strings.Join([]string{g.GetVendor(), g.GetType(), g.GetName()}, "/"), d.GetId(), healthy(d.GetHealthy()),
				holder,
				g.GetPlugin(), d.GetLocality(), joinMap(g.GetAttributes()), d.GetMessage())
		}
	}
	a.List(t, "no devices; a device plugin in the agent's plugin_dir reports them")
}

func (a *App) showDeviceStats(m *hostv1.DeviceStatsResponse) {
	for _, plugin := range slices.Sorted(maps.Keys(m.GetProblems())) {
		a.Note("warning: plugin %q: %s", plugin, m.GetProblems()[plugin])
	}
	t := NewTable("PLUGIN", "ID", "SUMMARY", "VALUES")
	for _, d := range m.GetDevices() {
		var values []string
		for _, key := range slices.Sorted(maps.Keys(d.GetValues())) {
			values = append(values, key+"="+strconv.FormatFloat(d.GetValues()[key], 'f', -1, 64))
		}
		t.Row(d.GetPlugin(), d.GetId(), d.GetSummary(), strings.Join(values, " "))
	}
	a.List(t, "no statistics: no device plugin has any")
}
