package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/doctor"
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
