package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/host/internal/config"
	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) driverCommand() *cobra.Command {
	return a.Noun("driver", "CSI drivers on this node",
		a.driverRegister(), a.driverDeregister(), a.driverRestart(), a.driverLogs(), a.driverHistory(),
		&cobra.Command{
			Use: "status [ID]", Short: "List the drivers, or show one",
			Example: "pannier driver status nfs",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
				if len(args) == 0 {
					resp, err := client.Drivers.ListDrivers(ctx, &hostv1.ListDriversRequest{})
					return a.Print(resp, err, func() { a.showDrivers(resp.GetDrivers()) })
				}
				resp, err := client.Drivers.GetDriver(ctx, &hostv1.GetDriverRequest{Id: args[0]})
				return a.Print(resp, err, func() { a.showDriver(resp.GetDriver()) })
			}),
		})
}

func (a *App) driverRegister() *cobra.Command {
	req := &hostv1.RegisterDriverRequest{}
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "register ID -endpoint unix:///PATH", Short: "Register a running CSI driver, or change how it is reached",
		Example: "pannier driver register nfs -endpoint unix:///run/csi/nfs.sock",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			req.Id = args[0]
			if err := config.CheckEndpoint(req.Endpoint); err != nil {
				return Usage("-endpoint: %w", err)
			}
			if timeout < 0 {
				return Usage("-health-timeout: must not be negative")
			}
			req.HealthTimeoutMs = timeout.Milliseconds()
			resp, err := client.Drivers.RegisterDriver(ctx, req)
			return a.Print(resp, err, func() {
				d := resp.GetDriver()
				a.Say("driver %q is registered, %s", d.GetId(), stateOf(d, req.Type))
			})
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&req.Endpoint, "endpoint", "", "the driver's socket, as unix:///`PATH`")
	flags.StringVar(&req.Type, "type", "monolith", "`TYPE`: node, controller or monolith")
	flags.StringVar(&req.Plugin, "plugin", "", "the storage plugin that reaches it (default csi-bridge, or the only one)")
	flags.StringVar(&req.MountDir, "mount-dir", "", "where a driver in a container sees its folder of the host")
	flags.StringVar(&req.StagePublishBaseDir, "stage-publish-base-dir", "",
		"where such a driver sees its staging and publish paths")
	flags.DurationVar(&timeout, "health-timeout", 0, "how long its first healthy answer may take (default 30s)")
	require(cmd, "endpoint")
	return cmd
}

func (a *App) driverDeregister() *cobra.Command {
	req := &hostv1.DeregisterDriverRequest{}
	cmd := &cobra.Command{
		Use: "deregister ID", Short: "Remove a driver that was registered at run time",
		Long: `Remove a driver that was registered at run time. Refused while a volume is mounted through
it, unless -force is given.`,
		Example: "pannier driver deregister nfs",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			req.Id = args[0]
			resp, err := client.Drivers.DeregisterDriver(ctx, req)
			err = hint(err, ExitRefused, "pannier volume list -driver %s lists its volumes; -force removes the driver anyway",
				args[0])
			return a.Done(resp, err, "driver %q is deregistered", args[0])
		}),
	}
	cmd.Flags().BoolVar(&req.Force, "force", false, "remove it even while a volume is mounted through it")
	cmd.Flags().StringVar(&req.Type, "type", "", "only the one of this `TYPE`, where node and controller are apart")
	return cmd
}

func (a *App) driverRestart() *cobra.Command {
	req := &hostv1.RestartDriverRequest{}
	cmd := &cobra.Command{
		Use: "restart ID", Short: "Restart a driver that the agent runs",
		Long: `Restart a driver that the agent runs, with its present csi_driver block and program. Refused
while the driver is in use, unless -force is given: volumes stay mounted then, except file
systems that the driver's own process serves.`,
		Example: "pannier driver restart local",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			req.Id = args[0]
			resp, err := client.Drivers.RestartDriver(ctx, req)
			return a.Print(resp, hint(err, ExitRefused, "pannier driver status %s", args[0]), func() {
				d := resp.GetDriver()
				text := fmt.Sprintf("driver %q is restarted", d.GetId())
				for _, p := range []*hostv1.Driver{d, d.GetController()} {
					if p.GetPid() != 0 && (req.Type == "" || req.Type == p.GetType()) {
						text += fmt.Sprintf(" as process %d, %s;", p.GetPid(), stateOf(d, p.GetType()))
					}
				}
				a.Say("%s", strings.TrimSuffix(text, ";"))
			})
		}),
	}
	cmd.Flags().BoolVar(&req.Force, "force", false, "restart it even while it is in use")
	cmd.Flags().StringVar(&req.Type, "type", "", "only the process of this `TYPE`, where node and controller are apart")
	return cmd
}

// stateOf says how the process of a driver is that has a type.
func stateOf(d *hostv1.Driver, kind string) string {
	p := d
	if c := d.GetController(); c != nil && c.GetType() == kind {
		p = c
	}
	if p.GetHealthy() {
		return "healthy"
	}
	return "not healthy yet: " + p.GetMessage() + "; follow it with: pannier driver status " + d.GetId()
}

func (a *App) showDrivers(drivers []*hostv1.Driver) {
	t := NewTable("ID", "TYPE", "HEALTH", "PROVIDER", "VERSION", "SOURCE", "SINCE", "MESSAGE")
	row := func(d *hostv1.Driver) {
		t.Row(d.GetId(), d.GetType(), healthy(d.GetHealthy()), d.GetProvider(), d.GetProviderVersion(), d.GetSource(),
			age(d.GetChangedAt()), d.GetMessage())
	}
	for _, d := range drivers {
		row(d)
		if c := d.GetController(); c != nil {
			row(c)
		}
	}
	a.List(t,
		"no drivers; add one with pannier driver register, or a csi_driver block in the agent's configuration")
}

func (a *App) showDriver(d *hostv1.Driver) {
	t := NewTable()
	t.Row("ID", d.GetId())
	process := func(d *hostv1.Driver) {
		t.Row("Type", d.GetType())
		t.Row("Health", healthy(d.GetHealthy()))
		t.Row("Message", d.GetMessage())
		t.Row("Since", age(d.GetChangedAt()))
		t.Row("Provider", strings.TrimSpace(d.GetProvider()+" "+d.GetProviderVersion()))
		t.Row("Plugin", d.GetPlugin())
		t.Row("Endpoint", d.GetEndpoint())
		t.Row("Source", d.GetSource())
		if d.GetPid() != 0 {
			t.Row("Process", fmt.Sprintf("%d, %s", d.GetPid(), escape.Count(d.GetRestarts(), "restart")))
		}
		t.Row("Program", shortSum(d.GetProgramSha256()))
		t.Row("Program's file", d.GetProgramProblem())
		for _, line := range d.GetLastOutput() {
			t.Row("Printed", logLine(line))
		}
	}
	process(d)
	if c := d.GetController(); c != nil {
		process(c)
	}
	if left := d.GetLeftPids(); len(left) > 0 {
		t.Row("Kept for mounts", "processes "+strings.Trim(fmt.Sprint(left), "[]"))
	}
	t.Row("Node id", d.GetNodeId())
	t.some("Volumes at most", d.GetMaxVolumes())
	if d.GetEphemeralVolumes() {
		t.Row("Ephemeral volumes", "in "+cmp.Or(strings.Join(d.GetEphemeralNamespaces(), ", "), "all namespaces"))
	}
	t.Row("Topology", joinMap(d.GetTopology()))
	if c := d.GetCapacity(); c != nil {
		t.Row("Room for volumes", capacityText(c))
	}
	t.Row("Controllers", fmt.Sprintf("%d of %d healthy", d.GetControllersHealthy(), d.GetControllersExpected()))
	t.Row("Nodes", fmt.Sprintf("%d of %d healthy", d.GetNodesHealthy(), d.GetNodesExpected()))
	t.Row("Controller can", strings.Join(d.GetControllerCapabilities(), " "))
	t.Row("Node can", strings.Join(d.GetNodeCapabilities(), " "))
	a.Show(t)
}

func capacityText(c *hostv1.DriverCapacity) string {
	text := cmp.Or(size(c.GetAvailable()), "0 B")
	if c.GetMinimumVolume() > 0 {
		text += ", at least " + size(c.GetMinimumVolume()) + " a volume"
	}
	if c.GetMaximumVolume() > 0 {
		text += ", at most " + size(c.GetMaximumVolume()) + " a volume"
	}
	return text
}

// joinMap writes a map as key=value, sorted.
func joinMap(m map[string]string) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		list = append(list, key+"="+m[key])
	}
	return strings.Join(list, " ")
}
