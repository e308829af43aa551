package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/host/internal/cli/bundle"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/config/doctor"
	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func doctorVerb() verb {
	var paths []string
	var fix bool
	var node string
	return verb{
		use: "doctor", short: "Check this machine and its agent, and name the commands that mend them",
		long: `Check this machine and its agent for what keeps workloads from their volumes: one row for
each finding, with the command that mends it. It works without an agent, too: what needs one
is skipped then. Run it as root, on the agent's machine.

-fix mends what can be mended without risk: it loads the kernel's module for loop devices, and
detaches those whose file was deleted and that nothing has mounted.

-node has the agent of another node check its machine, with the configuration that it runs with.

The exit code is 0 if all is well, also with warnings, and 1 if something does not work.`,
		example: "\n-config /etc/pannier -o json\n-node n2",
		flags: func(f *pflag.FlagSet) {
			f.StringArrayVar(&paths, "config", nil,
				"`PATH` of the agent's configuration; may be given more than once (default "+config.SystemDir+", if it is there)")
			f.BoolVar(&fix, "fix", false, "mend what can be mended without risk")
			nodeFlag(f, &node)
		},
		local: func(ctx context.Context, c *call) (err error) {
			if node != "" && (fix || len(paths) > 0) {
				return Usage("-fix and -config are for this machine, -node is for another")
			}
			if c.Client, err = c.App.Client(); err != nil {
				return err
			}
			var found []doctor.Finding
			if node != "" {
				found, err = examineNode(ctx, c.Client, node)
			} else {
				p := patient(c, paths)
				p.Fix = fix
				found, err = doctor.Examine(ctx, p)
			}
			err = c.Print(found, err, func() { showFindings(c.Printer, found) })
			if err == nil && doctor.Worst(found) == doctor.Fail {
				err = silentExit(ExitError)
			}
			return err
		},
	}
}

// examineNode has the agent of another node check its machine.
func examineNode(ctx context.Context, client *api.Client, node string) (found []doctor.Finding, err error) {
	resp, err := client.Agent.Examine(ctx, &hostv1.ExamineRequest{Node: node})
	for _, f := range resp.GetFindings() {
		found = append(found, doctor.Finding{
			Check: f.GetCheck(), Status: doctor.Status(f.GetStatus()), Why: f.GetWhy(), Subject: f.GetSubject(),
			Command: f.GetCommand(),
		})
	}
	return found, err
}

// patient is this machine with the configuration of its agent; without paths that of a package, if it is there.
func patient(c *call, paths []string) doctor.Patient {
	p := doctor.Patient{Client: c.Client}
	if paths = config.Installed(paths); len(paths) == 0 {
		return p
	}
	p.Config, p.ConfigErr = config.Load(config.Source{Paths: paths})
	p.CheckSetup = func(ctx context.Context, consul string) (steps []doctor.SetupStep, err error) {
		f := setupFlags{paths: paths, name: consul, checks: true}
		in, err := f.input(p.Config)
		if err != nil {
			return nil, err
		}
		if in.Token == "" {
			return nil, doctor.ErrNoManagement
		}
		report, err := setUp(ctx, c.App, p.Config, in, false)
		if err == nil && report.Error != "" {
			err = errors.New(report.Error)
		}
		return report.Steps, err
	}
	return p
}

func showFindings(p *Printer, found []doctor.Finding) {
	colors := map[doctor.Status]Color{doctor.OK: Green, doctor.Warn: Yellow, doctor.Fail: Red}
	for _, f := range found {
		why := f.Why
		if f.Fixed != "" {
			why += " (" + f.Fixed + ")"
		}
		status := Cell{fmt.Sprintf("%-7s", f.Status), colors[f.Status]}
		p.write(fmt.Sprintf("%s  %-19s  %s\n", status.painted(p.colored(p.Out)), f.Check, printable(why)))
		if f.Command != "" && f.Fixed != "mended" {
			p.Say("%30srun: %s", "", f.Command)
		}
	}
}

const (
	// debugPatience bounds each call of pannier debug.
	debugPatience = 10 * time.Second
	// debugLines is how many lines of each log are collected.
	debugLines = 2000
)

func debugVerb() verb {
	var paths []string
	var during time.Duration
	return verb{
		use: "debug [FILE]", short: "Collect what helps to find a problem's cause, without secrets, in one archive",
		long: `Collect what helps to find the cause of a problem in a new .tar.gz, which only you can read: the
agent's configuration without secrets, what pannier status and pannier doctor say, volumes,
workloads, nodes and servers, events, the logs of the agent, its plugins and drivers, mounts,
metrics, stacks and profiles. It works without an agent, too. Run it as root, on the agent's
machine; with ACLs, with a token that may write agent and read the rest.

Secrets that are known here are searched for in each file before it is written: the token of
this command, those in the agent's configuration and in the files that it names, those that the
agent keeps in files, and whatever is a JSON Web Token or a private key. A line of a log with
one, or else the whole file, is left out. Secrets of volumes are not known here; the agent shows
them to nobody. errors.txt in the archive names what is missing, and why.`,
		example: "\n-duration 10s /tmp/pannier.tar.gz",
		flags: func(f *pflag.FlagSet) {
			f.StringArrayVar(&paths, "config", nil, "`PATH` of the agent's configuration; may be given more than once "+
				"(default: the agent's own, or "+config.SystemDir+" if the agent does not answer)")
			f.DurationVar(&during, "duration", 0, "how long to profile the agent's use of the processor, at most 1m")
		},
		local: func(ctx context.Context, c *call) error {
			if during < 0 || during > time.Minute {
				return Usage("-duration: from 0s to 1m")
			}
			return debugHost(ctx, c, paths, during)
		},
	}
}

func debugHost(ctx context.Context, a *call, paths []string, during time.Duration) (err error) {
	if a.Client, err = a.App.Client(); err != nil {
		return err
	}
	token, err := a.token()
	if err != nil {
		return err
	}
	c := &collection{call: a, config: paths}
	c.Secret("the token of this command", token)
	c.collect(ctx, during)
	if err := ctx.Err(); err != nil {
		return errors.New("interrupted: nothing was written")
	}
	folder := fmt.Sprintf("pannier-debug-%s-%s", cmp.Or(c.name, "host"), time.Now().UTC().Format("20060102-150405"))
	path := cmp.Or(a.arg(0), folder+".tar.gz")
	sum, err := c.WriteFile(path, folder)
	if err != nil {
		return exists(err, path, "name another file")
	}
	written := struct {
		File string `json:"file"`
		bundle.Summary
	}{path, sum}
	return a.Print(written, nil, func() {
		for _, line := range sum.Missing {
			a.Note("missing: %s", line)
		}
		a.Say("wrote %s: %s", path, escape.Count(sum.Files, "file"))
	})
}

// collection is a bundle that is being filled.
type collection struct {
	bundle.Bundle
	*call
	config []string // paths of the agent's configuration
	name   string   // the node's; empty: not known
}

func (c *collection) collect(ctx context.Context, during time.Duration) {
	c.versions()
	c.diagnose(ctx, during)
	patient := patient(c.call, c.config)
	if cfg := patient.Config; cfg != nil {
		values, files := cfg.Secrets()
		for whose, value := range values {
			c.Secret(whose, value)
		}
		for _, path := range files {
			c.SecretFile(path)
		}
		if name := "configuration.json"; c.File(name).Len() == 0 { // the agent does not answer
			shown, err := cfg.Shown()
			c.File(name).Write(shown)
			c.Missing(name, err)
		}
	} else {
		c.Missing("the search for secrets", fmt.Errorf("those in the agent's configuration were not searched for: %w",
			cmp.Or(patient.ConfigErr, errors.New("it is not known where that is"))))
	}
	found, err := doctor.Examine(ctx, patient)
	c.text("doctor.txt", err, func(p *Printer) { showFindings(p, found) })
	status := collectAnswer(ctx, c, "status", c.Agent.Status, &hostv1.StatusRequest{})
	if status != nil {
		c.name = status.GetName()
		c.text("status.txt", nil, func(p *Printer) { showStatus(p, status) })
	}
	collectAnswer(ctx, c, "volumes", c.Volumes.ListVolumes, &hostv1.ListVolumesRequest{})
	collectAnswer(ctx, c, "workloads", c.Workloads.ListWorkloads, &hostv1.ListWorkloadsRequest{})
	collectAnswer(ctx, c, "nodes", c.Nodes.ListNodes, &hostv1.ListNodesRequest{})
	members := collectAnswer(ctx, c, "members", c.Members.ListMembers, &hostv1.ListMembersRequest{})
	if len(members.GetMembers()) > 0 && members.GetMembers()[0].GetAddress() != "" { // not a single host
		collectAnswer(ctx, c, "peers", c.Operator.ListPeers, &hostv1.ListPeersRequest{})
		collectAnswer(ctx, c, "autopilot", c.Operator.GetAutopilot, &hostv1.GetAutopilotRequest{})
		collectAnswer(ctx, c, "health", c.Operator.AutopilotHealth, &hostv1.AutopilotHealthRequest{})
	}
	c.logs(ctx, status)
}

// text adds what a command shows to people.
func (c *collection) text(name string, err error, show func(p *Printer)) {
	p := &Printer{Out: c.File(name), Err: c.File(name), format: formatTable, noColor: true}
	show(p)
	c.Missing(name, errors.Join(err, p.outErr))
}

// message adds a message as JSON.
func (c *collection) message(name string, m proto.Message, indent string) {
	p := &Printer{Out: c.File(name)}
	p.writeJSON(m, indent)
	c.Missing(name, p.outErr)
}

// versions adds the versions of this program and of the kernel.
func (c *collection) versions() {
	var kernel unix.Utsname
	err := unix.Uname(&kernel)
	c.text("versions.txt", err, func(p *Printer) {
		p.Say("%s", c.version())
		p.Say("kernel %s %s", unix.ByteSliceToString(kernel.Release[:]), unix.ByteSliceToString(kernel.Version[:]))
	})
}

// diagnose adds the files that the agent has of itself.
func (c *collection) diagnose(ctx context.Context, during time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, during+debugPatience)
	defer cancel()
	req := &hostv1.DiagnoseRequest{}
	if during > 0 {
		req.Cpu = durationpb.New(during)
	}
	stream, err := c.Agent.Diagnose(ctx, req)
	c.Missing("the agent's own files", each(ctx, stream, err, func(m *hostv1.DiagnoseResponse) error {
		for _, path := range m.GetSecretFiles() {
			c.SecretFile(path)
		}
		if len(c.config) == 0 {
			c.config = m.GetConfigFiles()
		}
		if m.GetFile() != "" {
			c.File(m.GetFile()).Write(m.GetChunk())
		}
		if m.GetError() != "" {
			c.Missing(m.GetFile(), errors.New(m.GetError()))
		}
		return nil
	}))
}

// collectAnswer adds the answer of a call, and returns it; nil if there is none.
func collectAnswer[Req, Resp any, M interface {
	*Resp
	proto.Message
}](ctx context.Context, c *collection, name string,
	call func(context.Context, *Req) (*Resp, error), req *Req,
) M {
	ctx, cancel := context.WithTimeout(ctx, debugPatience)
	defer cancel()
	name += ".json"
	resp, err := call(ctx, req)
	if err != nil {
		c.Missing(name, err)
		return nil
	}
	c.message(name, M(resp), "  ")
	return M(resp)
}

// logs adds the events, and the logs of plugins and of drivers that the agent runs.
func (c *collection) logs(ctx context.Context, status *hostv1.StatusResponse) {
	ctx, cancel := context.WithTimeout(ctx, debugPatience)
	defer cancel()
	const events = "events.jsonl"
	stream, err := c.Agent.Events(ctx, &hostv1.EventsRequest{Recent: keptEvents})
	c.Missing(events, each(ctx, stream, err, func(m *hostv1.EventsResponse) error {
		c.message(events, m.GetEvent(), "")
		return nil
	}))
	for _, p := range status.GetPlugins() {
		stream, err := c.Plugins.PluginLog(ctx, &hostv1.PluginLogRequest{Name: p.GetName(), Recent: debugLines})
		addLog(ctx, c, "logs/plugin-"+p.GetName()+".log", stream, err)
	}
	driver := func(name string, req *hostv1.DriverLogRequest, d *hostv1.Driver) {
		if d.GetPid() == 0 && d.GetRestarts() == 0 { // the agent does not run it
			return
		}
		req.Recent = debugLines
		stream, err := c.Drivers.DriverLog(ctx, req)
		addLog(ctx, c, "logs/driver-"+name+".log", stream, err)
	}
	for _, d := range status.GetDrivers() {
		id := d.GetId()
		driver(id, &hostv1.DriverLogRequest{Id: id}, d)
		driver(id+"-controller", &hostv1.DriverLogRequest{Id: id, Type: "controller"}, d.GetController())
	}
}

// addLog adds the lines of a log's stream to a file.
func addLog[T any, M interface {
	*T
	GetLine() string
}](ctx context.Context, c *collection, name string, stream *connect.ServerStreamForClient[T], err error) {
	c.Missing(name, each(ctx, stream, err, func(m *T) error {
		c.File(name).WriteString(M(m).GetLine() + "\n")
		return nil
	}))
}
