package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/doctor"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) doctorCommand() *cobra.Command {
	var paths []string
	var fix bool
	var node string
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use: "doctor", Short: "Check this machine and its agent, and name the commands that mend them",
		Long: `Check this machine and its agent for what keeps workloads from their volumes: one row for
each finding, with the command that mends it. It works without an agent, too: what needs one
is skipped then. Run it as root, on the agent's machine.

-fix mends what can be mended without risk: it loads the kernel's module for loop devices, and
detaches those whose file was deleted and that nothing has mounted.

-node has the agent of another node check its machine, with the configuration that it runs with.

The exit code is 0 if all is well, also with warnings, and 1 if something does not work.`,
		Example: `pannier doctor
pannier doctor -config /etc/pannier -o json
pannier doctor -node n2`,
		RunE: a.Do(func(ctx context.Context, _ []string) error {
			if node == "" {
				return a.examine(ctx, paths, fix)
			}
			if fix || len(paths) > 0 {
				return Usage("-fix and -config are for this machine, -node is for another")
			}
			return a.examineNode(ctx, node)
		}),
	}
	cmd.Flags().StringArrayVar(&paths, "config", nil,
		"`PATH` of the agent's configuration; may be given more than once (default "+config.SystemDir+", if it is there)")
	cmd.Flags().BoolVar(&fix, "fix", false, "mend what can be mended without risk")
	a.nodeFlag(cmd, &node)
	return cmd
}

// examineNode has the agent of another node check its machine.
func (a *App) examineNode(ctx context.Context, node string) error {
	client, err := a.Client()
	if err != nil {
		return err
	}
	resp, err := client.Agent.Examine(ctx, &hostv1.ExamineRequest{Node: node})
	if err != nil {
		return err
	}
	var found []doctor.Finding
	for _, f := range resp.GetFindings() {
		found = append(found, doctor.Finding{
			Check: f.GetCheck(), Status: doctor.Status(f.GetStatus()), Why: f.GetWhy(), Subject: f.GetSubject(),
			Command: f.GetCommand(),
		})
	}
	return a.showExamined(found)
}

func (a *App) examine(ctx context.Context, paths []string, fix bool) error {
	client, err := a.Client()
	if err != nil {
		return err
	}
	p := a.patient(client, paths)
	p.Fix = fix
	found, err := doctor.Examine(ctx, p)
	if err != nil {
		return err
	}
	return a.showExamined(found)
}

// showExamined shows findings, and fails if one of them is a failure.
func (a *App) showExamined(found []doctor.Finding) error {
	if err := a.Print(found, func() error { return a.showFindings(found) }); err != nil {
		return err
	}
	if doctor.Worst(found) == doctor.Fail {
		return silentExit(ExitError)
	}
	return nil
}

// patient is this machine with the configuration of its agent; without paths that of a package, if it is there.
func (a *App) patient(client *api.Client, paths []string) doctor.Patient {
	p := doctor.Patient{Client: client}
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
		report, err := a.setUp(ctx, p.Config, in, false)
		if err != nil {
			return nil, err
		}
		for _, s := range report.Steps {
			steps = append(steps, doctor.SetupStep(s))
		}
		if report.Error != "" {
			err = errors.New(report.Error)
		}
		return steps, err
	}
	return p
}

func (a *App) showFindings(found []doctor.Finding) error {
	colors := map[doctor.Status]Color{doctor.OK: Green, doctor.Warn: Yellow, doctor.Fail: Red}
	for _, f := range found {
		why := f.Why
		if f.Fixed != "" {
			why += " (" + f.Fixed + ")"
		}
		status := fmt.Sprintf("%-7s", f.Status)
		if c := colors[f.Status]; c != "" && a.colored(a.Out) {
			status = "\x1b[" + string(c) + "m" + status + "\x1b[0m"
		}
		if _, err := fmt.Fprintf(a.Out, "%s  %-19s  %s\n", status, f.Check, printable(why)); err != nil {
			return err
		}
		if f.Command != "" && f.Fixed != "mended" {
			if err := a.Say("%s", strings.Repeat(" ", 30)+"run: "+f.Command); err != nil {
				return err
			}
		}
	}
	return nil
}
