package cli

import (
	"context"
	"errors"
	"fmt"

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
	cmd := &cobra.Command{
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
	nodeFlag(cmd, &node)
	return cmd
}

// examineNode has the agent of another node check its machine.
func (a *App) examineNode(ctx context.Context, node string) error {
	client, err := a.Client()
	if err != nil {
		return err
	}
	resp, err := client.Agent.Examine(ctx, &hostv1.ExamineRequest{Node: node})
	var found []doctor.Finding
	for _, f := range resp.GetFindings() {
		found = append(found, doctor.Finding{
			Check: f.GetCheck(), Status: doctor.Status(f.GetStatus()), Why: f.GetWhy(), Subject: f.GetSubject(),
			Command: f.GetCommand(),
		})
	}
	return a.showExamined(found, err)
}

func (a *App) examine(ctx context.Context, paths []string, fix bool) error {
	client, err := a.Client()
	if err != nil {
		return err
	}
	p := a.patient(client, paths)
	p.Fix = fix
	found, err := doctor.Examine(ctx, p)
	return a.showExamined(found, err)
}

// showExamined shows findings, and fails if one of them is a failure.
func (a *App) showExamined(found []doctor.Finding, err error) error {
	err = a.Print(found, err, func() { a.showFindings(found) })
	if err == nil && doctor.Worst(found) == doctor.Fail {
		err = silentExit(ExitError)
	}
	return err
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
		if err == nil && report.Error != "" {
			err = errors.New(report.Error)
		}
		return report.Steps, err
	}
	return p
}

func (a *App) showFindings(found []doctor.Finding) {
	colors := map[doctor.Status]Color{doctor.OK: Green, doctor.Warn: Yellow, doctor.Fail: Red}
	for _, f := range found {
		why := f.Why
		if f.Fixed != "" {
			why += " (" + f.Fixed + ")"
		}
		status := Cell{fmt.Sprintf("%-7s", f.Status), colors[f.Status]}
		a.write(fmt.Sprintf("%s  %-19s  %s\n", status.painted(a.colored(a.Out)), f.Check, printable(why)))
		if f.Command != "" && f.Fixed != "mended" {
			a.Say("%30srun: %s", "", f.Command)
		}
	}
}
