package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/pannier/pannier/host/internal/config"
	escape "github.com/pannier/pannier/internal/printable"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func driverNoun() noun {
	return nounOf("driver", "CSI drivers on this node", append(driverRegisterVerbs(), driverStatusVerbs()...))
}

// driverRegisterVerbs add, remove and restart a driver.
func driverRegisterVerbs() []verb {
	register, timeout := &hostv1.RegisterDriverRequest{}, time.Duration(0)
	deregister, restart := &hostv1.DeregisterDriverRequest{}, &hostv1.RestartDriverRequest{}
	approve := &hostv1.ApproveDriverRequest{}
	return []verb{
		{
			use: "register ID -endpoint unix:///PATH", short: "Register a running CSI driver, or change how it is reached",
			example: "nfs -endpoint unix:///run/csi/nfs.sock",
			flags: func(f *pflag.FlagSet) {
				f.StringVar(&register.Endpoint, "endpoint", "", "the driver's socket, as unix:///`PATH`")
				f.StringVar(&register.Type, "type", "monolith", "`TYPE`: node, controller or monolith")
				f.StringVar(&register.Plugin, "plugin", "",
					"the storage plugin that reaches it (default csi-bridge, or the only one)")
				f.StringVar(&register.MountDir, "mount-dir", "", "where a driver in a container sees its folder of the host")
				f.StringVar(&register.StagePublishBaseDir, "stage-publish-base-dir", "",
					"where such a driver sees its staging and publish paths")
				f.DurationVar(&timeout, "health-timeout", 0, "how long its first healthy answer may take (default 30s)")
			},
			needs: []string{"endpoint"},
			run: func(ctx context.Context, c *call) error {
				if err := config.CheckEndpoint(register.Endpoint); err != nil {
					return Usage("-endpoint: %w", err)
				}
				if timeout < 0 {
					return Usage("-health-timeout: must not be negative")
				}
				register.Id, register.HealthTimeoutMs = c.args[0], timeout.Milliseconds()
				resp, err := c.Drivers.RegisterDriver(ctx, register)
				d := resp.GetDriver()
				state := stateOf(d, register.Type)
				if path, dead := unheard(d); dead {
					state = fmt.Sprintf("but nothing listens on %s: start the driver", path)
				}
				return c.Done(resp, err, "driver %q is registered, %s", d.GetId(), state)
			},
		},
		{
			use: "approve ID NODE", short: "Let a driver's controller on a node have secrets", example: "nfs web-1",
			long: `Let the controller of a driver on a node be asked with the secrets of volumes, of all namespaces
unless the node is bound to some. Servers, and the node that reported the driver before any
other, need no approval. Without it a controller is asked what needs no secrets.`,
			flags: func(f *pflag.FlagSet) { f.BoolVar(&approve.Revoke, "revoke", false, "end the approval") },
			run: func(ctx context.Context, c *call) error {
				approve.DriverId, approve.Name = c.args[0], c.args[1]
				resp, err := c.Nodes.ApproveDriver(ctx, approve)
				text := "driver %q on node %q is asked with secrets"
				if approve.Revoke {
					text = "driver %q on node %q is asked without secrets only, unless the node is a server"
				}
				return c.Done(resp, err, text, c.args[0], c.args[1])
			},
		},
		{
			use: "deregister ID", short: "Remove a driver that was registered at run time", example: "nfs",
			long: `Remove a driver that was registered at run time. Refused while a volume is mounted through
it, unless -force is given, which asks first, or needs -yes.`,
			danger: &danger{
				when: &deregister.Force, concerns: claimsOfDriver,
				risk: "volumes that are mounted through driver %[1]q stay mounted, and nothing can unmount them without it",
			},
			flags: func(f *pflag.FlagSet) {
				f.BoolVar(&deregister.Force, "force", false, "remove it even while a volume is mounted through it")
				f.StringVar(&deregister.Type, "type", "", "only the one of this `TYPE`, where node and controller are apart")
			},
			run: order("driver %q is deregistered", func(ctx context.Context, c *call) (any, error) {
				deregister.Id = c.args[0]
				resp, err := c.Drivers.DeregisterDriver(ctx, deregister)
				return resp, hint(err, ExitRefused, "pannier volume list -driver %s lists its volumes; -force removes the driver anyway",
					c.args[0])
			}),
		},
		{
			use: "convert JOB", short: "Write csi_driver blocks from the job of a Nomad plugin", example: "plugin-nfs.nomad.hcl >nfs.hcl",
			long: `Write a csi_driver block for each task with a csi_plugin block of a Nomad job in HCL, to standard
output. A container is started by the line of docker run in a comment. Nothing is asked of a Nomad.`,
			local: func(_ context.Context, c *call) error { _, err := c.convert(config.ConvertDriver); return err },
		},
		{
			use: "restart ID", short: "Restart a driver that the agent runs", example: "local",
			long: `Restart a driver that the agent runs, with its present csi_driver block and program. Refused
while the driver is in use, unless -force is given: volumes stay mounted then, except file
systems that the driver's own process serves.`,
			flags: func(f *pflag.FlagSet) {
				f.BoolVar(&restart.Force, "force", false, "restart it even while it is in use")
				f.StringVar(&restart.Type, "type", "", "only the process of this `TYPE`, where node and controller are apart")
			},
			run: func(ctx context.Context, c *call) error {
				restart.Id = c.args[0]
				resp, err := c.Drivers.RestartDriver(ctx, restart)
				d := resp.GetDriver()
				text := fmt.Sprintf("driver %q is restarted", d.GetId())
				for _, p := range []*hostv1.Driver{d, d.GetController()} {
					if p.GetPid() != 0 && (restart.Type == "" || restart.Type == p.GetType()) {
						text += fmt.Sprintf(" as process %d, %s;", p.GetPid(), stateOf(d, p.GetType()))
					}
				}
				err = hint(err, ExitRefused, "pannier driver status %s", c.args[0])
				return c.Done(resp, err, "%s", strings.TrimSuffix(text, ";"))
			},
		},
	}
}

// stateOf returns the state of a driver's process of a type.
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

// unheard returns the socket of a driver on which nothing listens.
func unheard(d *hostv1.Driver) (path string, dead bool) {
	path = strings.TrimPrefix(d.GetEndpoint(), "unix://")
	return path, !d.GetHealthy() && (strings.Contains(d.GetMessage(), syscall.ENOENT.Error()) ||
		strings.Contains(d.GetMessage(), syscall.ECONNREFUSED.Error()))
}

// driverStatusVerbs show what a driver is, was and printed.
func driverStatusVerbs() []verb {
	log := &hostv1.DriverLogRequest{}
	return []verb{
		{
			use: "status [ID]", short: "List the drivers, or show one", example: "nfs",
			run: func(ctx context.Context, c *call) error {
				if len(c.args) == 0 {
					resp, err := c.Drivers.ListDrivers(ctx, &hostv1.ListDriversRequest{})
					return list(c.Printer, resp, err, resp.GetDrivers(), driverColumns)
				}
				resp, err := c.Drivers.GetDriver(ctx, &hostv1.GetDriverRequest{Id: c.args[0]})
				return c.Tables(resp, err, driverTable(resp.GetDriver()))
			},
		},
		{
			use: "logs ID", short: "Show what the processes of a driver that the agent runs printed",
			long: `Show what the processes of a driver that the agent runs printed, and with -follow new lines
as they come.`,
			example: "local -follow",
			flags: func(f *pflag.FlagSet) {
				logFlags(f, &log.Recent, &log.Follow)
				f.StringVar(&log.Type, "type", "", "the process of this `TYPE`, where node and controller are apart")
			},
			run: func(ctx context.Context, c *call) error {
				log.Id = c.args[0]
				stream, err := c.Drivers.DriverLog(ctx, log)
				return each(ctx, stream, err, func(m *hostv1.DriverLogResponse) error { return c.showLogLine(m) })
			},
		},
		{
			use: "history ID", short: "Show how the program of a driver that the agent runs was changed", example: "local",
			long: `Show the last 20 changes of the program of a driver that the agent runs, the newest last: how
long each took, whether calls waited, and why a program was refused, or it went back to the one
before. With -o json each is one line.`,
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Drivers.GetDriver(ctx, &hostv1.GetDriverRequest{Id: c.args[0]})
				swaps := append(resp.GetDriver().GetSwaps(), resp.GetDriver().GetController().GetSwaps()...)
				return printLines(c.Printer, swaps, err, columns[*hostv1.DriverSwap]{
					[]string{"AT", "FROM", "TO", "TOOK", "RESULT"},
					driverSwap,
					fmt.Sprintf("the program of driver %q was not changed", c.args[0]),
				})
			},
		},
	}
}

func driverSwap(t *Table, s *hostv1.DriverSwap) {
	result := Cell{"restarted: calls waited", Green}
	switch {
	case s.GetRefused():
		result = Cell{"refused next to the old process: " + s.GetWhy(), Yellow}
	case s.GetRollback():
		result = Cell{"rolled back: " + s.GetWhy(), Yellow}
	case s.GetOverlap():
		result = Cell{"swapped next to the old process", Green}
	}
	took := ""
	if s.GetTook() != nil {
		took = short(s.GetTook().AsDuration())
	}
	t.Row(moment(s.GetAt()), shortSum(s.GetFromSha256()), shortSum(s.GetToSha256()), took, result)
}

var driverColumns = columns[*hostv1.Driver]{
	[]string{"ID", "TYPE", "HEALTH", "PROVIDER", "VERSION", "SOURCE", "SINCE", "MESSAGE"},
	func(t *Table, d *hostv1.Driver) {
		for _, p := range []*hostv1.Driver{d, d.GetController()} {
			if p != nil {
				t.Row(p.GetId(), p.GetType(), healthy(p.GetHealthy()), p.GetProvider(), p.GetProviderVersion(), p.GetSource(),
					age(p.GetChangedAt()), p.GetMessage())
			}
		}
	},
	"no drivers; add one with pannier driver register, or a csi_driver block in the agent's configuration",
}

func driverTable(d *hostv1.Driver) *Table {
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
	return t
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
func joinMap[V any](m map[string]V) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		list = append(list, fmt.Sprintf("%s=%v", key, m[key]))
	}
	return strings.Join(list, " ")
}
