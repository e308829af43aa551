package cli

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func deviceNoun() noun {
	var interval time.Duration
	return nounOf("device", "Devices of this node, such as GPUs", []verb{
		{
			use: "list", short: "List the devices, and which workload has which",
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Devices.ListDevices(ctx, &hostv1.ListDevicesRequest{})
				return list(c.Printer, resp, err, resp.GetGroups(), deviceColumns)
			},
		},
		{
			use: "stats", short: "Show how the devices are used", example: "-interval 5s",
			long: `Show how the devices are used, as far as their plugins report it. With -o json each answer
is one line.`,
			flags: func(f *pflag.FlagSet) {
				f.DurationVar(&interval, "interval", 0, "repeat the answer every `DURATION`")
			},
			run: func(ctx context.Context, c *call) error {
				stream, err := c.Devices.DeviceStats(ctx, &hostv1.DeviceStatsRequest{IntervalMs: interval.Milliseconds()})
				return each(ctx, stream, err, func(m *hostv1.DeviceStatsResponse) error {
					return c.printLine(m, func() {
						for _, plugin := range slices.Sorted(maps.Keys(m.GetProblems())) {
							c.Note("warning: plugin %q: %s", plugin, m.GetProblems()[plugin])
						}
						statsColumns.show(c.Printer, m.GetDevices())
					})
				})
			},
		},
	})
}

var deviceColumns = columns[*hostv1.DeviceGroup]{
	[]string{"GROUP", "ID", "HEALTH", "WORKLOAD", "PLUGIN", "LOCALITY", "ATTRIBUTES", "MESSAGE"},
	func(t *Table, g *hostv1.DeviceGroup) {
		for _, d := range g.GetDevices() {
			holder := d.GetWorkload()
			if holder != "" {
				holder = d.GetNamespace() + "/" + holder
			}
			t.Row(strings.Join([]string{g.GetVendor(), g.GetType(), g.GetName()}, "/"), d.GetId(), healthy(d.GetHealthy()),
				holder, g.GetPlugin(), d.GetLocality(), joinMap(g.GetAttributes()), d.GetMessage())
		}
	},
	"no devices; a device plugin in the agent's plugin_dir reports them",
}

var statsColumns = columns[*hostv1.DeviceStats]{
	[]string{"PLUGIN", "ID", "SUMMARY", "VALUES"},
	func(t *Table, d *hostv1.DeviceStats) {
		var values []string
		for _, key := range slices.Sorted(maps.Keys(d.GetValues())) {
			values = append(values, key+"="+strconv.FormatFloat(d.GetValues()[key], 'f', -1, 64))
		}
		t.Row(d.GetPlugin(), d.GetId(), d.GetSummary(), strings.Join(values, " "))
	},
	"no statistics: no device plugin has any",
}
